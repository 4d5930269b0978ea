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

// slowed is a cloud whose spec already slows it down.
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

// ask makes a describe call and says what became of it.
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

// Every kind of fault does what it says, and clearing it leaves what the spec
// asked for.
func TestFaultsComeAndGo(t *testing.T) {
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
			for range 2 { // the second takes the place of the first
				ok(t, f.add(r))
			}
			if got := f.strings(); !slices.Equal(got, []string{strings.Join(tc.words, " ")}) {
				t.Errorf("in force: %q", got)
			}
			if !tc.bites(c) {
				t.Error("has no effect")
			}
			if n := f.clear(func(FaultRequest) bool { return true }); n != 1 || len(f.strings()) != 0 {
				t.Errorf("%d cleared, left %q", n, f.strings())
			}
			_ = lag(t, c, (*vpc.Cloud).Described) // by which the bucket fills up again
			var got []bool
			for range 3 { // the spec's bucket of two
				v := ask(c)
				got = append(got, v.Err == nil)
				if v.Latency != time.Second || v.LoseReply || v.LoseRequest {
					t.Errorf("afterwards %+v", v)
				}
			}
			if !slices.Equal(got, []bool{true, true, false}) || c.API.Down() || c.IMDS.Down() {
				t.Errorf("afterwards calls end as %v, down %v, metadata down %v", got, c.API.Down(), c.IMDS.Down())
			}
			if d, m := lag(t, c, (*vpc.Cloud).Described), lag(t, c, (*vpc.Cloud).Metadata); d != 2 || m != 3 {
				t.Errorf("afterwards describe calls lag %d s and metadata %d s, want 2 and 3", d, m)
			}
		})
	}
}

// lag is how many seconds a view is behind.
func lag(t *testing.T, c *vpc.Cloud, view func(*vpc.Cloud) vpc.View) int {
	t.Helper()
	fake, isFake := c.Clock().(*clock.Fake)
	if !isFake {
		t.Fatal("not a fake clock")
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

// A fault with a count says how many calls are left, and goes with the last.
func TestCountedFault(t *testing.T) {
	c := slowed(t)
	f := &faults{cloud: c}
	ok(t, f.add(request(t, 2, "lost-request", "Describe*")))
	for _, want := range [][]string{{"lost-request Describe* (next 2 calls)"}, {"lost-request Describe* (next 1 calls)"}, {}} {
		if got := f.strings(); !slices.Equal(got, want) {
			t.Errorf("in force: %q, want %q", got, want)
		}
		ask(c)
	}
}

func TestFaultMistakes(t *testing.T) {
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
			t.Errorf("%v, count %d: %v, want %q", tc.words, tc.count, err, tc.want)
		}
	}
	f := &faults{cloud: slowed(t)}
	for _, r := range []FaultRequest{
		{Kind: "earthquake"}, {Kind: "throttle", Action: "*", Value: "fast"}, {Kind: "throttle", Action: "*", Value: "0"},
		{Kind: "latency", Action: "*", Value: "soon"}, {Kind: "imds-delay", Value: "-1s"}, {Kind: "deny", Action: "Nothing"},
	} {
		if err := f.add(r); err == nil {
			t.Errorf("%+v is accepted", r)
		}
	}
	if got := f.strings(); len(got) != 0 {
		t.Errorf("in force after mistakes: %q", got)
	}
}

func TestAMachineHasOneSocket(t *testing.T) {
	t.Parallel()
	env := machineEnv([]string{"VPCLAB_NODE=node-1", "BERTH_SOCKET=/run/vpclab/lab/nodes/node-1/run/berthd.sock"})
	i := slices.IndexFunc(env, func(e string) bool { return strings.HasPrefix(e, "BERTH_SOCKET=") })
	if i < 0 || env[i] != "BERTH_SOCKET=/run/berth/berthd.sock" || !slices.Contains(env, "VPCLAB_NODE=node-1") {
		t.Errorf("%q: want the machine's own socket first", env)
	}
}
