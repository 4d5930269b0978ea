package ec2api

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berthnet/berth/lab/cloud/vpc"
)

// signatureSkew is the maximum age of a signed request
// (IAM User Guide, "Signature Version 4": five minutes).
const signatureSkew = 5 * time.Minute

const (
	sigAlgorithm = "AWS4-HMAC-SHA256"
	sigTime      = "20060102T150405Z"
)

// maxPresigned is the maximum validity of a presigned URL in seconds: a week
// (IAM User Guide, "Signature Version 4", X-Amz-Expires).
const maxPresigned = 7 * 24 * 60 * 60

// presignedPrefix is the prefix of a presigned URL's parameters for the signature.
const presignedPrefix = "X-Amz-"

// signature describes the signature of a request, from its Authorization header or a presigned URL.
type signature struct {
	keyID, date, region, service string
	headers                      []string
	sum                          string
	token, stamp                 string
	expires                      string // validity of a presigned URL: seconds from stamp
	query                        url.Values
}

func authFailure() *vpc.Error {
	return &vpc.Error{Code: "AuthFailure", Status: http.StatusUnauthorized,
		Message: "AWS was not able to validate the provided access credentials"}
}

func expired() *vpc.Error { return vpc.Errorf("RequestExpired", "Request has expired.") }

// authenticate verifies a request's Signature Version 4 and returns its key.
func (h *handler) authenticate(r *http.Request, body []byte) (vpc.Principal, *vpc.Error) {
	sig, failure := readSignature(r)
	if failure != nil {
		return vpc.Principal{}, failure
	}
	if sig.service != "ec2" || sig.region != h.cloud.Region() {
		return vpc.Principal{}, &vpc.Error{Code: "AuthFailure", Status: http.StatusUnauthorized,
			Message: fmt.Sprintf("Credential should be scoped to %s/ec2, got %s/%s.", h.cloud.Region(), sig.region, sig.service)}
	}
	if name := sig.unsigned(r.Header); name != "" {
		return vpc.Principal{}, &vpc.Error{Code: "AuthFailure", Status: http.StatusUnauthorized,
			Message: "There were headers present in the request which were not signed: " + name}
	}
	key, ok := h.cloud.Keys.Find(sig.keyID)
	if !ok || key.Token != sig.token {
		return vpc.Principal{}, authFailure()
	}
	from, until, ok := sig.life()
	if !ok || !sig.covers("host") {
		return vpc.Principal{}, authFailure()
	}
	if want := sig.compute(r, body, key.Secret); !hmac.Equal([]byte(want), []byte(sig.sum)) {
		return vpc.Principal{}, authFailure()
	}
	// Clients sign with the machine's clock; credentials expire on the cloud's clock.
	if now := time.Now(); now.Before(from) || now.After(until) {
		return vpc.Principal{}, expired()
	}
	if !key.Expires.IsZero() && !h.cloud.Clock().Now().Before(key.Expires) {
		return vpc.Principal{}, expired()
	}
	return key.Principal, nil
}

// readSignature finds a request's signature, in its header or its query.
func readSignature(r *http.Request) (s signature, failure *vpc.Error) {
	auth, query := r.Header.Get("Authorization"), r.URL.Query()
	incomplete := &vpc.Error{Code: "IncompleteSignature", Status: http.StatusBadRequest,
		Message: "The request is not signed once with " + sigAlgorithm + ", Credential, SignedHeaders and Signature."}
	presigned := query.Has(presignedPrefix + "Algorithm")
	switch {
	case auth == "" && !presigned:
		return s, &vpc.Error{Code: "MissingAuthenticationToken", Status: http.StatusForbidden, Message: "Request is missing Authentication Token"}
	case auth != "" && presigned:
		return s, incomplete
	}
	var scope, headers string
	if presigned {
		if query.Get(presignedPrefix+"Algorithm") != sigAlgorithm {
			return s, incomplete
		}
		scope, headers, s.sum = query.Get(presignedPrefix+"Credential"), query.Get(presignedPrefix+"SignedHeaders"), query.Get(presignedPrefix+"Signature")
		s.stamp, s.token, s.expires = query.Get(presignedPrefix+"Date"), query.Get(presignedPrefix+"Security-Token"), query.Get(presignedPrefix+"Expires")
		if s.expires == "" {
			return s, incomplete
		}
		query.Del(presignedPrefix + "Signature")
	} else {
		scope, headers, s.sum = parseAuthorization(auth)
		s.stamp, s.token = r.Header.Get("X-Amz-Date"), r.Header.Get("X-Amz-Security-Token")
	}
	s.query = query
	parts := strings.Split(scope, "/")
	if len(parts) != 5 || parts[4] != "aws4_request" || headers == "" || s.sum == "" {
		return s, incomplete
	}
	s.headers = strings.Split(headers, ";")
	s.keyID, s.date, s.region, s.service = parts[0], parts[1], parts[2], parts[3]
	return s, nil
}

// parseAuthorization parses an Authorization header; missing parts are empty.
func parseAuthorization(auth string) (scope, headers, sum string) {
	rest, ok := strings.CutPrefix(auth, sigAlgorithm+" ")
	if !ok {
		return "", "", ""
	}
	for part := range strings.SplitSeq(rest, ",") {
		k, v, _ := strings.Cut(strings.TrimSpace(part), "=")
		switch k {
		case "Credential":
			scope = v
		case "SignedHeaders":
			headers = v
		case "Signature":
			sum = v
		}
	}
	return scope, headers, sum
}

// life returns the validity of a signature. A presigned URL is valid from its time, minus the clock skew,
// until it expires.
func (s *signature) life() (from, until time.Time, ok bool) {
	at, err := time.Parse(sigTime, s.stamp)
	if err != nil || !strings.HasPrefix(s.stamp, s.date) {
		return from, until, false
	}
	if s.expires == "" {
		return at.Add(-signatureSkew), at.Add(signatureSkew), true
	}
	n, err := strconv.Atoi(s.expires)
	if err != nil || n < 1 || n > maxPresigned {
		return from, until, false
	}
	return at.Add(-signatureSkew), at.Add(time.Duration(n) * time.Second), true
}

// unsigned returns the name of an AWS header that the signature does not cover, or "".
func (s *signature) unsigned(h http.Header) string {
	for name := range h {
		if name = strings.ToLower(name); strings.HasPrefix(name, "x-amz-") && !s.covers(name) {
			return name
		}
	}
	return ""
}

func (s *signature) covers(headers ...string) bool {
	for _, h := range headers {
		if !slices.Contains(s.headers, h) {
			return false
		}
	}
	return true
}

// compute returns the signature of a request with a secret
// (IAM User Guide, "Create a signed AWS API request").
func (s *signature) compute(r *http.Request, body []byte, secret string) string {
	var canonical strings.Builder
	path := r.URL.EscapedPath()
	if path == "" {
		path = "/"
	}
	fmt.Fprintf(&canonical, "%s\n%s\n%s\n", r.Method, path, canonicalQuery(s.query))
	for _, h := range s.headers {
		fmt.Fprintf(&canonical, "%s:%s\n", h, headerValue(r, h))
	}
	fmt.Fprintf(&canonical, "\n%s\n%s", strings.Join(s.headers, ";"), hexSum(body))
	scope := strings.Join([]string{s.date, s.region, s.service, "aws4_request"}, "/")
	toSign := strings.Join([]string{sigAlgorithm, s.stamp, scope, hexSum([]byte(canonical.String()))}, "\n")
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
