package vpc

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/berthnet/berth/lab/cloud/spec"
)

// Audiences of service account tokens (EKS User Guide, "IAM roles for service accounts" and "EKS Pod Identity").
const (
	STSAudience         = "sts.amazonaws.com"
	PodIdentityAudience = "pods.eks.amazonaws.com"
)

// tokens are the tokens of service accounts, and the roles that trust them. The world's lock guards them.
type tokens struct {
	secret  []byte            // signs tokens, like the key of an API server
	trusted map[string]string // role by service account, "NAMESPACE/NAME"
}

func (t *tokens) trust(r spec.Role) {
	if r.ServiceAccount != "" {
		t.trusted[r.ServiceAccount] = r.Name
	}
}

// claims are the fields of a token that matter here.
type claims struct {
	Issuer   string   `json:"iss"`
	Subject  string   `json:"sub"`
	Audience []string `json:"aud"`
	Issued   int64    `json:"iat"`
	Expires  int64    `json:"exp"`
}

const subjectPrefix = "system:serviceaccount:"

// issuer is the OIDC provider that the tokens name.
const issuer = "https://oidc.eks.lab/id/BERTH"

// ServiceAccountToken returns a new token of a service account, "NAMESPACE/NAME", as the kubelet projects it into a
// pod.
func (ks *Keys) ServiceAccountToken(account, audience string, ttl time.Duration) string {
	now := ks.world.clock.Now()
	body, _ := json.Marshal(claims{ // a struct of text and numbers can always be encoded
		issuer, subjectPrefix + strings.ReplaceAll(account, "/", ":"), []string{audience}, now.Unix(), now.Add(ttl).Unix(),
	})
	signed := segment([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + segment(body)
	return signed + "." + segment(ks.tokens.sign(signed))
}

func segment(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

func (t *tokens) sign(text string) []byte {
	h := hmac.New(sha256.New, t.secret)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// verify returns the service account of a token for an audience, as of now.
func (t *tokens) verify(token, audience string, now time.Time) (account string, failure *Error) {
	at := strings.LastIndexByte(token, '.')
	if at < 0 {
		return "", Errorf("InvalidIdentityToken", "The ID Token provided is not a valid JWT.")
	}
	sum, err := base64.RawURLEncoding.DecodeString(token[at+1:])
	if err != nil || !hmac.Equal(sum, t.sign(token[:at])) {
		return "", Errorf("InvalidIdentityToken", "Couldn't retrieve verification key from your identity provider")
	}
	_, payload, _ := strings.Cut(token[:at], ".")
	var c claims
	if b, err := base64.RawURLEncoding.DecodeString(payload); err != nil || json.Unmarshal(b, &c) != nil {
		return "", Errorf("InvalidIdentityToken", "The ID Token provided is not a valid JWT.")
	}
	switch {
	case now.Unix() >= c.Expires:
		return "", Errorf("ExpiredTokenException", "Token expired: current date/time %d must be before the expiration date/time %d", now.Unix(), c.Expires)
	case !slices.Contains(c.Audience, audience):
		return "", Errorf("InvalidIdentityToken", "Incorrect token audience")
	}
	return strings.ReplaceAll(strings.TrimPrefix(c.Subject, subjectPrefix), ":", "/"), nil
}

// AssumeRole returns new credentials of the role that trusts the service account of a token for an audience. If role
// is not empty, it must be that role.
func (ks *Keys) AssumeRole(role, token, audience, session string) (k Key, failure *Error) {
	ks.world.read(func() {
		account, f := ks.tokens.verify(token, audience, ks.world.clock.Now())
		if failure = f; failure != nil {
			return
		}
		trusts := ks.tokens.trusted[account]
		if trusts == "" || role != "" && role != trusts {
			failure = &Error{"AccessDenied", http.StatusForbidden, "Not authorized to perform sts:AssumeRoleWithWebIdentity"}
			return
		}
		k = ks.issue(trusts, session)
	})
	return k, failure
}
