package ec2api_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// refusal is an error in EC2's format.
type refusal struct {
	Status  int
	Code    string `xml:"Errors>Error>Code"`
	Message string `xml:"Errors>Error>Message"`
	ID      string `xml:"RequestID"`
}

// query makes a signed form post without the checks of an SDK. Pairs are names and values in addition to
// the action; later values replace earlier ones.
func (r rig) query(action string, pairs ...string) refusal {
	r.Helper()
	form := url.Values{"Action": {action}, "Version": {"2016-11-15"}}
	for i := 0; i < len(pairs); i += 2 {
		form.Set(pairs[i], pairs[i+1])
	}
	return r.send(r.signed(form.Encode()))
}

// signed returns a signed form post.
func (r rig) signed(body string, header ...string) *http.Request {
	r.Helper()
	req, err := http.NewRequestWithContext(r.Context(), http.MethodPost, r.cloud.EC2URL+"/", strings.NewReader(body))
	if err != nil {
		r.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	r.sign(r.Context(), req, body)
	return req
}

func (r rig) sign(ctx context.Context, req *http.Request, body string) {
	r.Helper()
	k, err := static(r.cloud).Retrieve(ctx)
	if err != nil {
		r.Fatal(err)
	}
	sum := sha256.Sum256([]byte(body))
	if err := v4.NewSigner().SignHTTP(ctx, k, req, hex.EncodeToString(sum[:]), "ec2", r.cloud.Region(), time.Now()); err != nil {
		r.Fatal(err)
	}
}

// send returns the reply to a request. Code is empty on success.
func (r rig) send(req *http.Request) refusal {
	r.Helper()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.Fatal(err)
	}
	defer resp.Body.Close()
	return r.refusal(resp)
}

func (r rig) refusal(resp *http.Response) refusal {
	r.Helper()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.Fatal(err)
	}
	out := refusal{Status: resp.StatusCode}
	if resp.StatusCode == http.StatusOK {
		return out
	}
	if err := xml.Unmarshal(b, &out); err != nil || out.Code == "" {
		r.Fatalf("%s with a body that is not an EC2 error: %q", resp.Status, b)
	}
	return out
}

func (r rig) wantRefusal(got refusal, code string, status int) {
	r.Helper()
	if got.Code != code || got.Status != status {
		r.Errorf("reply = %d %s (%s), want %d %q", got.Status, got.Code, got.Message, status, code)
	}
}

// Counts are 32-bit integers.
func TestCountsOf32Bits(t *testing.T) {
	r := newRig(t, instant())
	id := r.cloud.Snapshot().ENIs[0].ID
	for _, name := range []string{"Ipv6AddressCount", "Ipv6PrefixCount"} {
		r.wantRefusal(r.query("AssignIpv6Addresses", "NetworkInterfaceId", id, name, "9223372036854775807"), "InvalidParameterValue", 400)
		r.wantRefusal(r.query("AssignIpv6Addresses", "NetworkInterfaceId", id, name, "2147483647"), "PrivateIpAddressLimitExceeded", 400)
	}
	for _, name := range []string{"SecondaryPrivateIpAddressCount", "Ipv4PrefixCount"} {
		r.wantRefusal(r.query("AssignPrivateIpAddresses", "NetworkInterfaceId", id, name, "2147483648"), "InvalidParameterValue", 400)
		r.wantRefusal(r.query("AssignPrivateIpAddresses", "NetworkInterfaceId", id, name, "2147483647"), "PrivateIpAddressLimitExceeded", 400)
	}
}

// The call log contains the action of an unsigned call but not its parameters.
func TestLogOfUnsignedCalls(t *testing.T) {
	r := newRig(t, instant())
	body := "Action=DescribeVpcs&Version=2016-11-15&Filter.1.Name=" + strings.Repeat("a", 1000)
	resp, err := http.Post(r.cloud.EC2URL, "application/x-www-form-urlencoded", strings.NewReader(body))
	ok(t, err)
	defer resp.Body.Close()
	r.wantRefusal(r.refusal(resp), "MissingAuthenticationToken", http.StatusForbidden)
	log := r.cloud.API.CallLog()
	if len(log) != 1 || log[0].Action != "DescribeVpcs" || log[0].Code != "MissingAuthenticationToken" || len(log[0].Params) != 0 {
		t.Errorf("call log = %+v, want DescribeVpcs without parameters", log)
	}
}

// A request that is too large or has too many filters is refused cheaply and in XML.
func TestHugeRequests(t *testing.T) {
	r := newRig(t, instant())
	r.wantRefusal(r.send(r.signed(strings.Repeat("a", 1<<20))), "RequestTooLarge", http.StatusRequestEntityTooLarge)
	var many []string
	for i := range 4000 {
		n := "Filter." + strconv.Itoa(i)
		many = append(many, n+".Name", "vpc-id", n+".Value.1", "x")
	}
	r.wantRefusal(r.query("DescribeVpcs", many...), "FilterLimitExceeded", 400)
	r.wantRefusal(r.query("DescribeVpcs", "Filter.1.Name", strings.Repeat("1.", 300), "Filter.1.Value.1", "x"), "InvalidParameterValue", 400)
	r.wantRefusal(r.query("DescribeVpcs", "Filter"+strings.Repeat(".1", 300), "x"), "InvalidQueryParameter", 400)
	if req := r.signed(""); req.Body != nil {
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(nil)), 0
		req.Method = http.MethodPut
		r.wantRefusal(r.send(req), "MalformedQueryString", 400)
	}
}

// Errors of net/http itself are answered in XML too; replies of the API are left unchanged.
func TestProtocolErrorsAreXML(t *testing.T) {
	r := newRig(t, instant())
	for _, text := range []string{
		"GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n", "POST / HTTP/1.1\r\n\r\n", "nonsense\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: carrier-pigeon\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
	} {
		if got := r.exchange(text); got.Code != "MalformedQueryString" || got.Status < 400 || got.ID == "" {
			t.Errorf("reply to %q = %+v, want MalformedQueryString", text, got)
		}
	}
}

// exchange sends a text to the EC2 API and returns the error it replies with.
func (r rig) exchange(text string) refusal {
	r.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.cloud.EC2URL, "http://"))
	if err != nil {
		r.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(text)); err != nil {
		r.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		r.Fatalf("reply to %q: %v", text, err)
	}
	defer resp.Body.Close()
	return r.refusal(resp)
}

// A presigned URL carries its signature in its query and is valid for the stated time.
func TestPresigned(t *testing.T) {
	r := newRig(t, instant())
	get := func(expires string, age time.Duration, tamper func(string) string) refusal {
		t.Helper()
		target := r.cloud.EC2URL + "/?Action=DescribeVpcs&Version=2016-11-15&X-Amz-Expires=" + expires
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, target, http.NoBody)
		ok(t, err)
		k, err := static(r.cloud).Retrieve(t.Context())
		ok(t, err)
		sum := sha256.Sum256(nil)
		signed, _, err := v4.NewSigner().PresignHTTP(t.Context(), k, req, hex.EncodeToString(sum[:]), "ec2", r.cloud.Region(), time.Now().Add(-age))
		ok(t, err)
		if req, err = http.NewRequestWithContext(t.Context(), http.MethodGet, tamper(signed), http.NoBody); err != nil {
			t.Fatal(err)
		}
		return r.send(req)
	}
	same := func(s string) string { return s }
	r.wantRefusal(get("3600", 30*time.Minute, same), "", http.StatusOK)
	r.wantRefusal(get("3600", 61*time.Minute, same), "RequestExpired", http.StatusBadRequest)
	r.wantRefusal(get("604801", 0, same), "AuthFailure", http.StatusUnauthorized)
	r.wantRefusal(get("0", 0, same), "AuthFailure", http.StatusUnauthorized)
	r.wantRefusal(get("60", 0, func(s string) string { return strings.Replace(s, "DescribeVpcs", "DescribeTags", 1) }), "AuthFailure", http.StatusUnauthorized)
	r.wantRefusal(get("60", 0, func(s string) string { return strings.Replace(s, "X-Amz-Expires=60", "X-Amz-Expires=3600", 1) }), "AuthFailure", http.StatusUnauthorized)
	r.wantRefusal(get("60", 0, func(s string) string { return s[:strings.Index(s, "&X-Amz-Signature")] }), "IncompleteSignature", http.StatusBadRequest)
	for _, c := range r.cloud.API.CallLog() {
		if _, there := c.Params["X-Amz-Signature"]; there {
			t.Errorf("call log contains a signature: %+v", c)
		}
	}
}
