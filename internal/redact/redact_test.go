package redact

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

const (
	jwt    = "eyJhbGciOiJSUzI1NiIsImtpZCI6IngifQ.eyJzdWIiOiJzeXN0ZW06c2VydmljZWFjY291bnQifQ.c2lnbmF0dXJl_-x"
	awsKey = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
	pem    = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEAplanted1\nMIIEowIBAAKCAQEAplanted2\n-----END RSA PRIVATE KEY-----"
)

// Each text has the secret "planted", or one that its form shows, and a text that stays.
func TestText(t *testing.T) {
	for name, tt := range map[string]struct{ in, stays string }{
		"variable":             {"PATH=/bin DB_PASSWORD=planted x=1", "x=1"},
		"variable in quotes":   {`export API_TOKEN="planted two words" # why`, "# why"},
		"slog":                 {`time=2026-01-02T03:04:05Z level=INFO msg=starting token=planted node=a`, "node=a"},
		"slog, in a value":     {`level=ERROR msg="asking" err="Get https://x: password=planted refused" node=a`, "refused\" node=a"},
		"slog, escaped":        {`msg="got {\"password\":\"planted\",\"node\":\"a\"}" n=1`, `\"node\":\"a\"`},
		"json":                 {`{"level":"INFO","clientSecret":"planted","node":"a"}`, `"node":"a"`},
		"json, escaped quote":  {`{"password":"planted\"planted","node":"a"}`, `"node":"a"`},
		"json, truncated":      {`{"node":"a","password":"planted planted`, `"node":"a"`},
		"json, cut after sep":  {`{"node":"a","deep":"{\"password\":\"planted planted`, `"node":"a"`},
		"yaml":                 {"  password: planted with planted words\n  user: a", "user: a"},
		"yaml list":            {"- token: planted\n  name: a", "name: a"},
		"comma":                {"password=a,planted,b node=a", "node=a"},
		"comma first":          {"password=,planted node=a", "node=a"},
		"comma, more names":    {"token=a,planted,node=a,other:b", ",node=a,other:b"},
		"semicolon":            {"Server=x;Password=a;planted;b;User=a", ";User=a"},
		"both at the end":      {"password=a,;planted;, then", "then"},
		"list of names":        {"token=planted, node=a; b", "node=a; b"},
		"flags by commas":      {"[--token=a,planted,--v=2]", "--v=2]"},
		"flag, comma":          {"berthd --api-key a,planted,b --node=a", "--node=a"},
		"URL, comma":           {"https://x/?token=a,planted&a=b", "&a=b"},
		"flag":                 {"berthd --api-key planted --node=a", "--node=a"},
		"flag with =":          {"berthd --kube-token=planted --node=a", "--node=a"},
		"flag, quoted":         {`berthd --password "planted two words" --node=a`, "--node=a"},
		"flag, escaped":        {`msg="ran --password \"planted two\" --node a" n=1`, `--node a" n=1`},
		"arguments, compact":   {`{"args":["--token","planted","--v","2"]}`, `"--v","2"`},
		"arguments, escaped":   {`msg="[\"--token\", \"planted\", \"--v\"]"`, `\"--v\"`},
		"struct in Go":         {`auth:{password:planted User:a}`, "User:a}"},
		"begins as an object":  {`{"password":"{planted","secret":"[planted","a":1}`, `"a":1}`},
		"list of arguments":    {`["--token", "planted", "--v", "2"]`, `"--v", "2"`},
		"bearer":               {`curl -H "Authorization: Bearer plantedplanted" http://a`, "http://a"},
		"bearer alone":         {"bearer plantedplanted, then", "then"},
		"basic":                {"> authorization: Basic cGxhbnRlZDpwbGFudGVk", ""},
		"header in Go":         {`map[Authorization:[Bearer plantedplanted] Accept:[a]]`, "Accept:[a]"},
		"web token":            {"token " + jwt + " of a", "of a"},
		"AWS key ID":           {"key AKIAIOSFODNN7EXAMPLE of a", "of a"},
		"AWS temporary":        {"ASIAIOSFODNN7EXAMPLE,a", ",a"},
		"AWS secret":           {"the key " + awsKey + " of a", "of a"},
		"AWS secret, named":    {"aws_secret_access_key = planted\nregion = a", "region = a"},
		"AWS signature":        {"Authorization: AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20260101/eu/ec2/aws4_request, SignedHeaders=host, Signature=planted", ""},
		"signed URL":           {"GET https://s3/x?X-Amz-Security-Token=planted&X-Amz-Signature=planted&a=b", "&a=b"},
		"URL":                  {"proxy http://me:planted@proxy:3128/a", "proxy:3128/a"},
		"URL, odd password":    {"http://me:pl@nted@proxy/a planted=1 password=planted", "proxy/a planted=1"},
		"private key":          {"before\n" + pem + "\nafter", "before\n" + Mark + "\nafter"},
		"private key, escaped": {`key: "` + strings.ReplaceAll(pem, "\n", `\n`) + `" after`, "after"},
		"private key, no end":  {"before\n-----BEGIN PRIVATE KEY-----\nplanted\nand planted", "before"},
		"private key, its end": {"MIIEowIBAAKCAQEAplanted2\n-----END RSA PRIVATE KEY-----\nafter", "after"},
		"bootstrap token":      {"join abc1ef.0123456789abcdef --a", "--a"},
		"GitHub":               {"ghp_abcdefghijklmnopqrstuvwxyz012345 a", " a"},
		"docker":               {`"auths": {"registry": {"auth": "planted"}}, "a"`, `"a"`},
		"kubeconfig":           {"users:\n- name: a\n  user:\n    client-key-data: planted\n    token: planted\n", "name: a"},
		"cookie":               {"Set-Cookie: planted\nA: b", "A: b"},
	} {
		got := Text(tt.in)
		for _, secret := range []string{"planted two", "=planted", "planted with", "planted w", "plantedplanted", "planted1", "planted2", "pl@nted", ":planted", "{planted", "[planted", ",planted", ";planted", "\"planted", " planted", jwt, awsKey, "AKIAIOS", "ASIAIOS", "ghp_", "abc1ef", "\nplanted", "cGxhbnRl"} {
			if strings.Contains(strings.ReplaceAll(got, "planted=1", ""), secret) {
				t.Errorf("%s: %q is left in %q", name, secret, got)
			}
		}
		if !strings.Contains(got, tt.stays) {
			t.Errorf("%s: %q, which lacks %q", name, got, tt.stays)
		}
		if again := Text(got); again != got {
			t.Errorf("%s: %q is %q the second time", name, got, again)
		}
	}
}

func TestWhatIsNoSecretStays(t *testing.T) {
	for _, s := range []string{
		"level=INFO msg=\"a pod came\" pod=default/web address=10.0.0.7 container=4f5e6d7c8b9a0f1e2d3c4f5e6d7c8b9a0f1e2d3c4f5e6d7c8b9a0f1e2d3c4f5e",
		"automountServiceAccountToken: false", "AWS_WEB_IDENTITY_TOKEN_FILE=/var/run/secrets/eks.amazonaws.com/serviceaccount/token",
		`"clientToken":"berth-x"`, "berth_ec2_limiter_tokens 100", "secretName: berth-webhook", "key \"berth/c1/eth0\"",
		"image: registry.k8s.io/pause@sha256:0123456789abcdef", "docker-pullable://nginx@sha256:0123456789abcdef",
		"commit ed051c8aa2b5a6a1b3c4d5e6f708192a3b4c5d6e", "token expired", `"token":null`, "host ip-10-0-1-7.eu-west-1.compute.internal",
	} {
		if got := Text(s); got != s {
			t.Errorf("%q became %q", s, got)
		}
	}
}

// The cost of a line is proportional to its length, even if each "=" begins a value that
// goes on to its end.
func TestLongLine(t *testing.T) {
	for _, part := range []string{"a=", "token={a", "token=map[a", "token=" + Mark, `token=\` + Mark} {
		in := strings.Repeat(part, (maxLine-16)/len(part)) + " token=planted"
		if got, want := Line(in), strings.Replace(in, "planted", Mark, 1); got != want {
			t.Errorf("%s: it ends with %q, want %q", part, got[len(got)-40:], want[len(want)-40:])
		}
	}
}

func TestValue(t *testing.T) {
	const doc = `{
 "kind": "Pod", "metadata": {"name": "token", "annotations": {
   "example.com/auth-token": "planted", "kubectl.kubernetes.io/last-applied-configuration": "{\"env\":[{\"name\":\"DB_PASSWORD\",\"value\":\"planted\"}],\"a\":\"stays\"}"}},
 "spec": {"containers": [{"args": ["--password", "planted", "--token=planted", "--node", "stays"],
   "env": [{"name": "AWS_SECRET_ACCESS_KEY", "value": "planted"}, {"name": "PROXY", "value": "http://u:planted@stays"},
           {"name": "REF", "valueFrom": {"secretKeyRef": {"name": "stays", "key": "stays"}}}]}],
   "volumes": [{"secret": {"secretName": "stays"}}, {"projected": {"sources": [{"serviceAccountToken": {"path": "stays", "expirationSeconds": 3607}}]}}]},
 "credentials": {"user": "planted", "deep": ["planted", {"x": "planted", "pin": 12345678}]},
 "passwords": ["planted"], "token": "{planted", "authToken": "[planted", "big": 12345678901234567890,
 "items": [{"kind": "Secret", "metadata": {"name": "stays"}, "data": {"x": "planted"}, "stringData": {"y": "planted"}}]}`
	got := string(JSON([]byte(doc)))
	if strings.Contains(got, "planted") || strings.Contains(got, "12345678\n") {
		t.Errorf("a secret is left:\n%s", got)
	}
	if n := strings.Count(got, "stays"); n != strings.Count(doc, "stays") {
		t.Errorf("%d of %d stay:\n%s", n, strings.Count(doc, "stays"), got)
	}
	for _, s := range []string{`"name": "token"`, "3607", "12345678901234567890"} {
		if !strings.Contains(got, s) {
			t.Errorf("%s is missing:\n%s", s, got)
		}
	}
}

func TestDocument(t *testing.T) {
	for name, in := range map[string]string{
		"JSON":             `{"plugins":[{"type":"x","kubernetes":{"k8s_auth_token":"planted"}}],"a":"stays"}`,
		"truncated JSON":   `{"a":"stays","plugins":[{"type":"x","kubernetes":{"k8s_auth_token":"planted","policy":`,
		"kubeconfig":       "kind: Config\nclusters: [{name: stays}]\nusers:\n- name: x\n  user:\n    token: planted\n    client-key-data: |\n      planted\n      and planted\n",
		"two documents":    "a: stays\n---\npassword:\n- planted\n- planted\n",
		"comments first":   "# why\n---\na: stays\npassword: |\n  planted\n",
		"mark at the end":  "a: stays\npassword: |\n  planted\n---\n",
		"aliases":          "a: &a stays\nb: *a\npassword: planted\n",
		"shell":            "# stays\nexport TOKEN='planted'\n",
		"not quite, yaml:": "stays: [\n  token: planted\n",
	} {
		got := string(Document([]byte(in)))
		if strings.Contains(got, "planted") || !strings.Contains(got, "stays") {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// A node's answer cannot exhaust memory: aliases of aliases are not expanded.
func TestDocumentOfABomb(t *testing.T) {
	text := "plain: [" + strings.Repeat("0,", 500) + "0]\na: &a " + strings.Repeat("x", 6000) + "\n"
	for c := 'b'; c < 'g'; c++ {
		text += fmt.Sprintf("%c: &%c [%s]\n", c, c, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*%c,", c-1), 6), ","))
	}
	if got := Document([]byte(text)); len(got) > 2*len(text) {
		t.Errorf("%d bytes became %d", len(text), len(got))
	}
}

// No secret passes, however a stream is cut into pieces.
func TestWriter(t *testing.T) {
	long := strings.Repeat("x ", maxLine/2-3) + "password=planted planted " + strings.Repeat("y", maxLine)
	in := "first TOKEN=planted\n" + pem + "\nafter the key\n" + long + "\n{\"key\":\"" + strings.ReplaceAll(pem, "\n", `\n`) + "\"}\nlast secret=planted"
	var want string
	for i, r := range []io.Reader{strings.NewReader(in), iotest.OneByteReader(strings.NewReader(in)), iotest.HalfReader(strings.NewReader(in))} {
		var out bytes.Buffer
		w := NewWriter(&out)
		if _, err := io.Copy(w, r); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		got := out.String()
		if i == 0 {
			want = got
		}
		if strings.Contains(got, "planted") || got != want {
			t.Errorf("reader %d: a secret is left, or it differs", i)
		}
		for _, s := range []string{"first TOKEN=", "\nafter the key\n", "[line cut]\n", "last secret="} {
			if !strings.Contains(got, s) {
				t.Errorf("reader %d: %q is missing", i, s)
			}
		}
	}
	if rest := Tail(fmt.Appendf(nil, "MIIEowIBAAKCAQEAplanted2\n-----END RSA PRIVATE KEY-----\nafter")); string(rest) != Mark+"\nafter" {
		t.Errorf("of a key's end %q is left", rest)
	}
}

// A line that names a key, or a key without an end, removes no more of a log than a key has.
func TestKeyWithoutEnd(t *testing.T) {
	var out bytes.Buffer
	w := NewWriter(&out)
	fmt.Fprint(w, "expected -----BEGIN PRIVATE KEY-----\n", strings.Repeat("cGxhbnRlZHBsYW50ZWRwbGFudGVk\n", 200), strings.Repeat("between\n", maxKey), "after\n")
	if got := out.String(); strings.Contains(got, "cGxhbnRl") || !strings.HasSuffix(got, "\nafter\n") {
		t.Errorf("%q", got)
	}
}
