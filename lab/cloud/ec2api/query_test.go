package ec2api

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
)

func TestWildcard(t *testing.T) {
	for _, tc := range []struct {
		pattern, s string
		want       bool
	}{
		{"", "", true}, {"", "a", false}, {"a", "a", true}, {"a", "A", false}, {"*", "", true}, {"*", "abc", true},
		{"a*", "abc", true}, {"*c", "abc", true}, {"a*c", "abd", false}, {"a*b*c", "a-b-b-c", true}, {"?", "", false}, {"a?c", "abc", true},
		{`\*`, "*", true}, {`\*`, "a", false}, {`a\?`, "a?", true}, {`\\`, `\`, true}, {`\`, `\`, true}, {"**", "x", true},
		{strings.Repeat("*a", 50) + "b", strings.Repeat("a", 2000), false},
	} {
		if got := wildcard(tc.pattern, tc.s); got != tc.want {
			t.Errorf("wildcard(%q, %.20q) = %v, want %v", tc.pattern, tc.s, got, tc.want)
		}
	}
}

// fuzzCloud returns a cloud and a handler whose requests need no signature.
func fuzzCloud(f *testing.F) (*vpc.Cloud, *handler) {
	f.Helper()
	s := spec.Default()
	s.Delays, s.Consistency = spec.Delays{}, spec.Consistency{}
	s.Throttle = "none"
	s.Quotas.NetworkInterfaces = 50
	c, err := vpc.New(s)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(c.Close)
	return c, &handler{cloud: c, actions: actions()}
}

// FuzzQuery runs arbitrary forms through the parser and the action that they name. No input may crash the
// handler or make the cloud inconsistent.
func FuzzQuery(f *testing.F) {
	cloud, h := fuzzCloud(f)
	snapshot := cloud.Snapshot()
	eni := snapshot.ENIs[0].ID
	for _, seed := range []string{
		"Action=DescribeNetworkInterfaces&Version=2016-11-15&Filter.1.Name=tag%3Aa&Filter.1.Value.1=%2A&MaxResults=5",
		"Action=AssignPrivateIpAddresses&NetworkInterfaceId=" + eni + "&SecondaryPrivateIpAddressCount=2",
		"Action=AssignPrivateIpAddresses&NetworkInterfaceId=" + eni + "&Ipv4Prefix.1=10.0.1.0%2F28&PrivateIpAddress.007=10.0.0.9",
		"Action=CreateNetworkInterface&SubnetId=" + snapshot.Subnets[0].ID + "&PrivateIpAddresses.1.PrivateIpAddress=10.0.0.9&PrivateIpAddresses.1.Primary=true",
		"Action=CreateTags&ResourceId.1=" + eni + "&Tag.1.Key=a&Tag.1.Value=b&Tag.99999999999999999999.Key=c",
		"Action=RunInstances&ImageId=ami-1&MinCount=1&MaxCount=1&NetworkInterface.1.SubnetId=x&NetworkInterface.1.DeviceIndex=0",
		"Action=DescribeTags&NextToken=RGVzY3JpYmVUYWdzCg&MaxResults=10&DryRun=maybe",
		"Filter.-1.Name=x&Filter.1=2&=&a=1&a=2;%zz",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		form, err := url.ParseQuery(body)
		if err != nil {
			return
		}
		run, known := h.actions[form.Get("Action")]
		p, refused := parse(form)
		if refused != nil || !known {
			return
		}
		r := &request{params: p, cloud: cloud, call: vpc.Call{Action: form.Get("Action")}}
		reply, err := run(r)
		w := httptest.NewRecorder()
		if err != nil {
			h.refuse(w, err)
		} else {
			h.reply(w, httptest.NewRequest(http.MethodPost, "/", http.NoBody), r.call.Action, reply, nil)
		}
		if w.Code == http.StatusInternalServerError {
			t.Fatalf("reply to %q is an internal error: %s", body, w.Body)
		}
		if err := cloud.Snapshot().Check(); err != nil {
			t.Fatalf("cloud is inconsistent after %q: %v", body, err)
		}
	})
}
