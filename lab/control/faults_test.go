package control

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/lab/cloud/iam"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
)

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// slowed returns a cloud whose spec has rate limits, latencies and delays.
func slowed(t *testing.T) *vpc.Cloud {
	t.Helper()
	s := spec.Default()
	s.Throttle = "none"
	s.RateLimits = map[string]spec.RateLimit{"Describe*": {Bucket: 2, Refill: 1}}
	s.Latencies = map[string]spec.Duration{"Describe*": spec.Duration(time.Second)}
	s.Consistency.Describe = spec.Duration(2 * time.Second)
	s.IMDS.Delay = spec.Duration(3 * time.Second)
	c, err := vpc.New(s, vpc.WithClock(clock.NewFake(time.Unix(1e9, 0))))
	ok(t, err)
	t.Cleanup(c.Close)
	return c
}

// ask makes a describe call and returns the verdict.
func ask(c *vpc.Cloud) vpc.Verdict {
	return c.API.Admit(vpc.Call{Action: "DescribeSubnets", Principal: vpc.Principal{Policy: iam.Allow("*")}})
}

func request(t *testing.T, count int, words ...string) FaultRequest {
	t.Helper()
	k, err := KindNamed(words[0])
	ok(t, err)
	r, err := k.Request(words[1:], count)
	ok(t, err)
	return r
}

// Every kind of fault takes effect, and clearing it restores the settings of the spec.
func TestFaultsApplyUntilCleared(t *testing.T) {
	for _, tc := range []struct {
		words []string
		bites func(c *vpc.Cloud) bool
	}{
		{[]string{"throttle", "Describe*", "0.5"}, func(c *vpc.Cloud) bool { return ask(c).Err == nil && ask(c).Err != nil }},
		{[]string{"error", "DescribeSubnets", "Oops"}, func(c *vpc.Cloud) bool { v := ask(c); return v.Err != nil && v.Err.Code == "Oops" }},
		{[]string{"lost-reply", "*"}, func(c *vpc.Cloud) bool { return ask(c).LoseReply }},
		{[]string{"lost-request", "ec2:describe*"}, func(c *vpc.Cloud) bool { return ask(c).LoseRequest }},
		{[]string{"deny", "*Subnets"}, func(c *vpc.Cloud) bool { v := ask(c); return v.Err != nil && v.Err.Code == "UnauthorizedOperation" }},
		{[]string{"latency", "Describe*", "5s"}, func(c *vpc.Cloud) bool { return ask(c).Latency == 5*time.Second }},
		{[]string{"outage"}, func(c *vpc.Cloud) bool { return c.API.Down() }},
		{[]string{"imds-outage"}, func(c *vpc.Cloud) bool { return c.IMDS.Down() }},
		{[]string{"imds-delay", "9s"}, func(c *vpc.Cloud) bool { return lag(t, c, (*vpc.Cloud).Metadata) == 9 }},
		{[]string{"describe-delay", "8s"}, func(c *vpc.Cloud) bool { return lag(t, c, (*vpc.Cloud).Described) == 8 }},
	} {
		t.Run(tc.words[0], func(t *testing.T) {
			c := slowed(t)
			f := &faults{cloud: c}
			r := request(t, 0, tc.words...)
			for range 2 { // the second replaces the first
				ok(t, f.add(r))
			}
			if got := f.strings(); !slices.Equal(got, []string{strings.Join(tc.words, " ")}) {
				t.Errorf("active faults = %q, want %q", got, strings.Join(tc.words, " "))
			}
			if !tc.bites(c) {
				t.Error("fault has no effect")
			}
			if n := f.clear(func(FaultRequest) bool { return true }); n != 1 || len(f.strings()) != 0 {
				t.Errorf("clear() = %d with active faults %q, want 1 and none", n, f.strings())
			}
			_ = lag(t, c, (*vpc.Cloud).Described) // lets the bucket fill up again
			var got []bool
			for range 3 { // the spec's bucket holds two calls
				v := ask(c)
				got = append(got, v.Err == nil)
				if v.Latency != time.Second || v.LoseReply || v.LoseRequest {
					t.Errorf("verdict after clear() = %+v, want the spec's latency and no fault", v)
				}
			}
			if !slices.Equal(got, []bool{true, true, false}) || c.API.Down() || c.IMDS.Down() {
				t.Errorf("after clear(): calls admitted = %v, EC2 down = %v, metadata down = %v; want [true true false] and both up", got, c.API.Down(), c.IMDS.Down())
			}
			if d, m := lag(t, c, (*vpc.Cloud).Described), lag(t, c, (*vpc.Cloud).Metadata); d != 2 || m != 3 {
				t.Errorf("after clear(): describe calls lag %d s and metadata %d s, want 2 and 3", d, m)
			}
		})
	}
}

// lag returns by how many seconds a view lags.
func lag(t *testing.T, c *vpc.Cloud, view func(*vpc.Cloud) vpc.View) int {
	t.Helper()
	fake, isFake := c.Clock().(*clock.Fake)
	if !isFake {
		t.Fatalf("clock is %T, want *clock.Fake", c.Clock())
	}
	e, err := c.ENIs.Create(vpc.CreateRequest{SubnetID: c.Snapshot().Subnets[0].ID})
	ok(t, err)
	for s := range 60 {
		if view(c).ENI(e.ID) != nil {
			return s
		}
		fake.Advance(time.Second)
	}
	return -1
}

// A fault with a count reports the remaining calls, and ends with the last.
func TestCountedFault(t *testing.T) {
	c := slowed(t)
	f := &faults{cloud: c}
	ok(t, f.add(request(t, 2, "lost-request", "Describe*")))
	for _, want := range [][]string{{"lost-request Describe* (next 2 calls)"}, {"lost-request Describe* (next 1 calls)"}, {}} {
		if got := f.strings(); !slices.Equal(got, want) {
			t.Errorf("active faults = %q, want %q", got, want)
		}
		ask(c)
	}
}

func TestInvalidFaultRequests(t *testing.T) {
	for _, tc := range []struct {
		words []string
		count int
		want  string
	}{
		{[]string{"error", "CreateNetworkInterface"}, 0, "ACTION CODE"},
		{[]string{"outage", "now"}, 0, "got"},
		{[]string{"deny", "CreateNetworkInterfaces"}, 0, "covers no action"},
		{[]string{"deny", "[*"}, 0, "covers no action"},
		{[]string{"deny", "*"}, 3, "a count does not apply"},
		{[]string{"lost-reply", "*"}, -3, "count -3"},
	} {
		k, err := KindNamed(tc.words[0])
		ok(t, err)
		if _, err := k.Request(tc.words[1:], tc.count); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v with count %d: error = %v, want one containing %q", tc.words, tc.count, err, tc.want)
		}
	}
	f := &faults{cloud: slowed(t)}
	for _, r := range []FaultRequest{
		{Kind: "earthquake"}, {Kind: "throttle", Action: "*", Value: "fast"}, {Kind: "throttle", Action: "*", Value: "0"},
		{Kind: "latency", Action: "*", Value: "soon"}, {Kind: "imds-delay", Value: "-1s"}, {Kind: "deny", Action: "Nothing"},
	} {
		if err := f.add(r); err == nil {
			t.Errorf("add(%+v) succeeded, want an error", r)
		}
	}
	if got := f.strings(); len(got) != 0 {
		t.Errorf("active faults after invalid requests = %q, want none", got)
	}
}

func TestMachineEnvironmentHasOneSocket(t *testing.T) {
	t.Parallel()
	env := machineEnv([]string{"VPCLAB_NODE=node-1", "BERTH_SOCKET=/run/vpclab/lab/nodes/node-1/run/berthd.sock"})
	i := slices.IndexFunc(env, func(e string) bool { return strings.HasPrefix(e, "BERTH_SOCKET=") })
	if i < 0 || env[i] != "BERTH_SOCKET=/run/berth/berthd.sock" || !slices.Contains(env, "VPCLAB_NODE=node-1") {
		t.Errorf("environment = %q, want the machine's own socket first", env)
	}
}
