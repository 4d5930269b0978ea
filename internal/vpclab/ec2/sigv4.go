package ec2

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/berthnet/berth/internal/vpclab/vpc"
)

// signatureSkew is how old a signed request may be
// (IAM User Guide, "Signature Version 4": five minutes).
const signatureSkew = 5 * time.Minute

const (
	sigAlgorithm = "AWS4-HMAC-SHA256"
	sigTime      = "20060102T150405Z"
)

// signature is what the Authorization header says.
type signature struct {
	keyID, date, region, service string
	headers                      []string
	sum                          string
}

func authFailure() *vpc.Error {
	return &vpc.Error{Code: "AuthFailure", Status: http.StatusUnauthorized,
		Message: "AWS was not able to validate the provided access credentials"}
}

func expired() *vpc.Error { return vpc.Errorf("RequestExpired", "Request has expired.") }

// authenticate verifies a request's Signature Version 4 and returns who signed it.
func (h *handler) authenticate(r *http.Request, body []byte) (vpc.Principal, *vpc.Error) {
	auth := r.Header.Get("Authorization")
	if auth == "" {
		return vpc.Principal{}, &vpc.Error{Code: "MissingAuthenticationToken", Status: http.StatusForbidden,
			Message: "Request is missing Authentication Token"}
	}
	sig, ok := parseSignature(auth)
	if !ok {
		return vpc.Principal{}, &vpc.Error{Code: "IncompleteSignature", Status: http.StatusBadRequest,
			Message: "The Authorization header is not an " + sigAlgorithm + " one with Credential, SignedHeaders and Signature."}
	}
	if sig.service != "ec2" || sig.region != h.cloud.Region() {
		return vpc.Principal{}, &vpc.Error{Code: "AuthFailure", Status: http.StatusUnauthorized,
			Message: fmt.Sprintf("Credential should be scoped to %s/ec2, got %s/%s.", h.cloud.Region(), sig.region, sig.service)}
	}
	key, ok := h.cloud.Key(sig.keyID)
	if !ok || key.Token != r.Header.Get("X-Amz-Security-Token") {
		return vpc.Principal{}, authFailure()
	}
	stamp := r.Header.Get("X-Amz-Date")
	at, err := time.Parse(sigTime, stamp)
	if err != nil || !strings.HasPrefix(stamp, sig.date) || !sig.covers("host", "x-amz-date") {
		return vpc.Principal{}, authFailure()
	}
	if want := sig.compute(r, body, stamp, key.Secret); !hmac.Equal([]byte(want), []byte(sig.sum)) {
		return vpc.Principal{}, authFailure()
	}
	if d := h.wall().Sub(at); d > signatureSkew || d < -signatureSkew {
		return vpc.Principal{}, expired()
	}
	if !key.Expires.IsZero() && !h.cloud.Clock().Now().Before(key.Expires) {
		return vpc.Principal{}, expired()
	}
	return key.Principal, nil
}

func parseSignature(auth string) (s signature, ok bool) {
	rest, ok := strings.CutPrefix(auth, sigAlgorithm+" ")
	if !ok {
		return s, false
	}
	var scope []string
	for part := range strings.SplitSeq(rest, ",") {
		k, v, _ := strings.Cut(strings.TrimSpace(part), "=")
		switch k {
		case "Credential":
			scope = strings.Split(v, "/")
		case "SignedHeaders":
			s.headers = strings.Split(v, ";")
		case "Signature":
			s.sum = v
		}
	}
	if len(scope) != 5 || scope[4] != "aws4_request" || len(s.headers) == 0 || s.sum == "" {
		return s, false
	}
	s.keyID, s.date, s.region, s.service = scope[0], scope[1], scope[2], scope[3]
	return s, true
}

func (s *signature) covers(headers ...string) bool {
	for _, h := range headers {
		if !slices.Contains(s.headers, h) {
			return false
		}
	}
	return true
}

// compute is the signature that the holder of a secret makes for a request
// (IAM User Guide, "Create a signed AWS API request").
func (s *signature) compute(r *http.Request, body []byte, stamp, secret string) string {
	var canonical strings.Builder
	path := r.URL.EscapedPath()
	if path == "" {
		path = "/"
	}
	fmt.Fprintf(&canonical, "%s\n%s\n%s\n", r.Method, path, canonicalQuery(r.URL.Query()))
	for _, h := range s.headers {
		fmt.Fprintf(&canonical, "%s:%s\n", h, headerValue(r, h))
	}
	fmt.Fprintf(&canonical, "\n%s\n%s", strings.Join(s.headers, ";"), hexSum(body))
	scope := strings.Join([]string{s.date, s.region, s.service, "aws4_request"}, "/")
	toSign := strings.Join([]string{sigAlgorithm, stamp, scope, hexSum([]byte(canonical.String()))}, "\n")
	key := []byte("AWS4" + secret)
	for _, part := range []string{s.date, s.region, s.service, "aws4_request"} {
		key = mac(key, part)
	}
	return hex.EncodeToString(mac(key, toSign))
}

func headerValue(r *http.Request, name string) string {
	switch name {
	case "host":
		return r.Host
	case "content-length":
		return fmt.Sprint(r.ContentLength)
	}
	var vs []string
	for _, v := range r.Header.Values(name) {
		vs = append(vs, strings.Join(strings.Fields(v), " "))
	}
	return strings.Join(vs, ",")
}

func canonicalQuery(q url.Values) string {
	return strings.ReplaceAll(q.Encode(), "+", "%20")
}

func hexSum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}
