package providers

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/operator/podnics"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/alcor"
	"github.com/berthnet/berth/internal/vpcport/lanes"
	"github.com/berthnet/berth/internal/vpcport/neutron"
	"github.com/berthnet/berth/internal/vpcport/portfake"
	"github.com/berthnet/berth/internal/vpcport/rest"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

// What a spec and a Secret say is what the provider is opened with.
func TestAccessOf(t *testing.T) {
	secret := &corev1.Secret{Data: map[string][]byte{}}
	for _, k := range []string{"username", "password", "userDomain", "project", "projectDomain", "id", "secret"} {
		secret.Data[k] = []byte("the " + k)
	}
	spec := v1alpha1.VPCSpec{
		Provider: v1alpha1.ProviderNeutron, Network: "blue", Endpoint: "https://keystone.example/v3", Region: "RegionOne", Project: "p-1",
		PortMAC: v1alpha1.PortMACProvider, TLS: &v1alpha1.VPCTLS{CABundle: "PEM", ServerName: "name", Insecure: true},
	}
	plain := neutron.Settings{
		Endpoint: spec.Endpoint, Region: "RegionOne", Project: "p-1", ProviderMAC: true, TLS: neutron.TLS{CABundle: "PEM", ServerName: "name", Insecure: true},
	}
	for kind, want := range map[v1alpha1.CredentialsType]*neutron.Credentials{
		"": nil,
		v1alpha1.CredentialsPassword: {Password: &neutron.Password{
			User: "the username", Password: "the password", UserDomain: "the userDomain", Project: "the project", ProjectDomain: "the projectDomain",
		}},
		v1alpha1.CredentialsApplication: {Application: &neutron.Application{ID: "the id", Secret: "the secret"}},
	} {
		spec.Credentials = nil
		if kind != "" {
			spec.Credentials = &v1alpha1.VPCCredentials{Type: kind, SecretName: "neutron"}
		}
		a, why := accessOf(Options{}, spec, secret)
		got := a.(toNeutron).Settings
		got.Agent, plain.Credentials = "", want
		if diff := cmp.Diff(plain, got); diff != "" || why != nil {
			t.Errorf("%q: %v %s", kind, why, diff)
		}
	}
	spec.Credentials = &v1alpha1.VPCCredentials{Type: "token", SecretName: "neutron"}
	if _, why := accessOf(Options{}, spec, secret); why == nil || !strings.Contains(why.message, `"token"`) {
		t.Errorf("an unknown type: %+v", why)
	}
	if _, why := accessOf(Options{}, v1alpha1.VPCSpec{Provider: "nova"}, nil); why == nil || why.reason != ReasonProviderNotSupported || !strings.Contains(why.message, "nova, expected alcor or ec2 or neutron") {
		t.Errorf("a provider of a later release: %+v", why)
	}
}

// Alcor is known by the spec alone.
func TestAccessOfAlcor(t *testing.T) {
	spec := v1alpha1.VPCSpec{
		Provider: v1alpha1.ProviderAlcor, Network: "blue", Endpoint: "https://alcor.example:9009", Project: "p-1",
		PortMAC: v1alpha1.PortMACProvider, TLS: &v1alpha1.VPCTLS{CABundle: "PEM", ServerName: "name", Insecure: true}, Alcor: &v1alpha1.AlcorSpec{NetnsPrefix: "vpc-ns-"},
	}
	a, why := accessOf(Options{}, spec, nil)
	got := a.(toAlcor).Settings
	got.Agent = ""
	want := alcor.Settings{
		Endpoint: spec.Endpoint, Project: "p-1", ProviderMAC: true, NetnsPrefix: "vpc-ns-", TLS: rest.TLS{CABundle: "PEM", ServerName: "name", Insecure: true},
	}
	if diff := cmp.Diff(want, got); diff != "" || why != nil {
		t.Errorf("%v %s", why, diff)
	}
	spec.TLS.CABundle, spec.Alcor.NetnsPrefix = "", "../x"
	if a, why = accessOf(Options{}, spec, nil); why != nil {
		t.Fatal(why)
	}
	if _, err := a.open(); err == nil || !strings.HasPrefix(err.Error(), "alcor.netnsPrefix:") {
		t.Errorf("a prefix that leads elsewhere: %v", err)
	}
}

// Each failure of a look has its condition; what comes after it is not known, what comes
// before it is good.
func TestVerdicts(t *testing.T) {
	spec := v1alpha1.VPCSpec{Network: "blue", Credentials: &v1alpha1.VPCCredentials{SecretName: "neutron"}}
	failed := func(class vpcport.Class, status int, about string) error {
		return &vpcport.Error{Class: class, Status: status, About: about, Message: "words"}
	}
	for name, tt := range map[string]struct {
		err     error
		want    [areas]string
		lasting bool
	}{
		"away":         {failed(vpcport.Transient, 0, ""), [areas]string{"False NoAnswer", "Unknown NotTried", "Unknown NotTried"}, false},
		"5xx":          {failed(vpcport.Transient, 502, ""), [areas]string{"False ProviderFailed", "Unknown NotTried", "Unknown NotTried"}, false},
		"no error":     {errors.New("words"), [areas]string{"False NoAnswer", "Unknown NotTried", "Unknown NotTried"}, false},
		"throttled":    {failed(vpcport.Throttled, 429, ""), [areas]string{"True Throttled", "Unknown NotTried", "Unknown NotTried"}, false},
		"nonsense":     {failed(vpcport.Bug, 200, ""), [areas]string{"False UnexpectedAnswer", "Unknown NotTried", "Unknown NotTried"}, false},
		"no Keystone":  {failed(vpcport.Invalid, 404, ""), [areas]string{"False InvalidEndpoint", "Unknown NotTried", "Unknown NotTried"}, false},
		"refused":      {failed(vpcport.Unauthorized, 401, ""), [areas]string{"True Answers", "False CredentialsRefused", "Unknown NotTried"}, true},
		"forbidden":    {failed(vpcport.Forbidden, 403, ""), [areas]string{"True Answers", "False Forbidden", "Unknown NotTried"}, true},
		"no network":   {failed(vpcport.NetworkGone, 0, "blue"), [areas]string{"True Answers", "True Accepted", "False NetworkNotFound"}, true},
		"two networks": {failed(vpcport.Invalid, 0, "blue"), [areas]string{"True Answers", "True Accepted", "False NetworkAmbiguous"}, true},
	} {
		p := problemOf(spec, tt.err)
		var got [areas]string
		for i, v := range verdicts(p, true, true) {
			got[i] = string(v.status) + " " + v.reason
		}
		if got != tt.want || p.lasting() != tt.lasting || !strings.Contains(p.message, "words") {
			t.Errorf("%s: %q, want %q; lasting %t, %q", name, got, tt.want, p.lasting(), p.message)
		}
	}
	unasked := verdicts(&problem{ofCredentials, ReasonSecretNotFound, ""}, true, false)
	if unasked[ofEndpoint].status != metav1.ConditionUnknown || unasked[ofCredentials].status != metav1.ConditionFalse {
		t.Errorf("an endpoint that was not asked: %+v", unasked)
	}
	harness.OK(t, controllers.Same("the reason without credentials", verdicts(nil, false, true)[ofCredentials].reason, ReasonNotNeeded))
}

// A pin counts while there are PodNICs.
func TestPin(t *testing.T) {
	was := pin{"n-1", "p-1"}
	for _, tt := range []struct {
		pin              pin
		nics             int
		network, project string
		want             string
	}{
		{was, 1, "n-1", "p-1", ""},
		{was, 1, "n-2", "p-1", ReasonNetworkChanged},
		{was, 1, "n-1", "p-2", ReasonProjectChanged},
		{was, 1, "n-2", "p-2", ReasonNetworkChanged},
		{was, 0, "n-2", "p-2", ""},
		{pin{}, 1, "n-2", "p-2", ""},
	} {
		why := tt.pin.holds(v1alpha1.VPCSpec{}, tt.nics, lookup{network: vpcport.Network{ID: tt.network}, project: tt.project})
		got := ""
		if why != nil {
			got = why.reason
		}
		if got != tt.want {
			t.Errorf("%+v: %q", tt, got)
		}
	}
}

// Three calls in a row without an answer make a provider one that is away; what tells of
// lasting trouble, or of its end, has the VPC looked at.
func TestHealth(t *testing.T) {
	looks := 0
	h := newHealth(func() { looks++ })
	step := func(what, op string, class vpcport.Class, wantLooks int, away bool, denied string) {
		t.Helper()
		var err error
		if class != vpcport.Unknown {
			err = &vpcport.Error{Class: class, Message: class.String()}
		}
		h.observe(op, err)
		if looks != wantLooks || h.away() != away || !strings.Contains(h.denied(), denied) || (denied == "") != (h.denied() == "") {
			t.Errorf("%s: %d looks, away %t, denied %q", what, looks, h.away(), h.denied())
		}
		looks = 0
	}
	step("one", lanes.OpGet, vpcport.Transient, 0, false, "")
	step("two", lanes.OpGet, vpcport.Transient, 0, false, "")
	step("an answer", lanes.OpGet, vpcport.PortGone, 0, false, "")
	step("one again", lanes.OpGet, vpcport.Transient, 0, false, "")
	step("two", lanes.OpGet, vpcport.Transient, 0, false, "")
	step("too many calls", lanes.OpGet, vpcport.Throttled, 0, false, "")
	step("three", lanes.OpPorts, vpcport.Transient, 1, true, "")
	step("four", lanes.OpPorts, vpcport.Transient, 0, true, "")
	step("good", lanes.OpPorts, vpcport.Unknown, 0, false, "")
	step("forbidden", lanes.OpCreate, vpcport.Forbidden, 1, false, "forbidden")
	step("still", lanes.OpCreate, vpcport.Forbidden, 0, false, "forbidden")
	step("something else", lanes.OpDelete, vpcport.Unknown, 0, false, "forbidden")
	step("allowed", lanes.OpCreate, vpcport.SubnetFull, 1, false, "")
	step("refused", lanes.OpCreate, vpcport.Unauthorized, 1, false, "")
	step("no network", lanes.OpCreate, vpcport.NetworkGone, 1, false, "")
	step("no network in a look", lanes.OpNetwork, vpcport.NetworkGone, 0, false, "")
	for range 5 {
		h.observe(lanes.OpGet, &vpcport.Error{Class: vpcport.Transient, Err: context.Canceled})
	}
	if h.away() {
		t.Error("away, as callers gave up")
	}
}

// Others hear of it when the answer of Of is another, and only then.
func TestBook(t *testing.T) {
	b := newNetworks()
	var changed []string
	b.Changed(func(vpc string) { changed = append(changed, vpc) })
	p := lanes.New(lanes.Options{}).Provider(portfake.New(portfake.Options{}), nil)
	open := func(subnet string) *answer {
		return &answer{opened: podnics.Opened{Provider: p, Network: vpcport.Network{ID: "n-1", Subnets: []vpcport.Subnet{
			{ID: subnet, CIDR: netip.MustParsePrefix("10.0.0.0/24")},
		}}}}
	}
	closed := func(why string) *answer { return &answer{why: &NotReady{"Reason", why}} }
	for i, tt := range []struct {
		answer *answer
		tells  bool
	}{
		{nil, false}, {closed("a"), true}, {closed("a"), false}, {closed("b"), true}, {open("s-1"), true}, {open("s-1"), false},
		{open("s-2"), true}, {closed("b"), true}, {nil, true}, {nil, false},
	} {
		changed = nil
		b.put("blue", tt.answer)
		if (len(changed) == 1) != tt.tells {
			t.Errorf("step %d: changed: %q", i, changed)
		}
		_, err := b.Of("blue")
		if isOpen := tt.answer != nil && tt.answer.why == nil; isOpen != (err == nil) {
			t.Errorf("step %d: %v", i, err)
		}
	}
}

func TestMetricsOfVPCs(t *testing.T) {
	m := NewMetrics()
	m.Called("blue", lanes.OpCreate, nil, time.Second, 2*time.Second)
	m.Called("blue", lanes.OpCreate, &vpcport.Error{Class: vpcport.SubnetFull}, 0, time.Second)
	m.Called("gone", lanes.OpCreate, nil, 0, time.Second)
	m.Gone("gone")
	c := &Controller{opener: newOpener(lanes.Options{Calls: 5}, nil), reported: newReports()}
	p, err := c.opener.open("blue", toNeutron{neutron.Settings{Endpoint: "http://127.0.0.1:1", Project: "p-1"}}, func() {})
	harness.OK(t, err)
	c.reported.put("blue", []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue}})
	c.reported.put("red", []metav1.Condition{{Type: "Reachable", Status: metav1.ConditionFalse}, {Type: "NetworkFound", Status: metav1.ConditionUnknown}})
	harness.CheckMetrics(t, append(m.Collectors(), c.Gauges()), Families, map[string]string{
		`berth_operator_port_calls_total{class="ok",operation="Create",vpc="blue"}`:          "1",
		`berth_operator_port_calls_total{class="subnet-full",operation="Create",vpc="blue"}`: "1",
		`berth_operator_port_calls_total{class="ok",operation="Create",vpc="gone"}`:          "",
		`berth_operator_port_call_seconds_sum{operation="Create",vpc="blue"}`:                "3",
		`berth_operator_port_call_wait_seconds_sum{vpc="blue"}`:                              "1",
		`berth_operator_port_calls_allowed`:                                                  "5",
		`berth_operator_port_calls_in_flight`:                                                "0",
		`berth_operator_port_calls_waiting`:                                                  "0",
		`berth_operator_vpc_condition{type="Ready",vpc="blue"}`:                              "1",
		`berth_operator_vpc_condition{type="Reachable",vpc="red"}`:                           "0",
		`berth_operator_vpc_condition{type="NetworkFound",vpc="red"}`:                        "",
	})
	p.close()
	harness.OK(t, controllers.Same("usage of the lanes without VPCs", c.opener.usage(), (lanes.Usage{})))
}

// What comes of a call that was under way when its VPC went is not counted: it would be for
// ever.
func TestCallThatOutlivesItsVPC(t *testing.T) {
	m := NewMetrics()
	e := &callObserver{vpc: "gone", health: newHealth(func() {}), calls: m}
	e.Called(lanes.OpPorts, nil, 0, time.Second)
	e.close()
	m.Gone("gone")
	e.Called(lanes.OpPorts, nil, 0, time.Second)
	m.Called("blue", lanes.OpPorts, nil, 0, time.Second)
	harness.CheckMetrics(t, m.Collectors(), []metric.Family{famCalls, famDuration, famWait}, map[string]string{
		`berth_operator_port_calls_total{class="ok",operation="Ports",vpc="gone"}`: "",
		`berth_operator_port_call_wait_seconds_count{vpc="gone"}`:                  "",
	})
}

// A VPC is open for others once its status tells whose its ports are, and not before.
func TestOpenAfterTheStatus(t *testing.T) {
	c := &Controller{networks: newNetworks()}
	v := controllers.Named[v1alpha1.VPC]("blue")
	s := &state{open: true, connection: &connection{}, found: lookup{network: vpcport.Network{ID: "n-1"}, project: "p-1"}}
	for _, tt := range []struct {
		pin  pin
		open bool
	}{{pin{}, false}, {pin{"n-1", "p-2"}, false}, {pin{"n-1", "p-1"}, true}} {
		s.pin = tt.pin
		c.publish(v, s)
		if _, err := c.networks.Of("blue"); (err == nil) != tt.open {
			t.Errorf("with the pin %+v: %v", tt.pin, err)
		}
	}
}

// Providers of one endpoint share its lanes, however it is written.
func TestLanesAreShared(t *testing.T) {
	o := newOpener(lanes.Options{Calls: 8}, nil)
	for _, endpoint := range []string{"http://127.0.0.1:1", "http://127.0.0.1:1/", "http://127.0.0.1:1/v3", "http://127.0.0.1:2/v3"} {
		_, err := o.open("blue", toNeutron{neutron.Settings{Endpoint: endpoint, Project: "p-1"}}, func() {})
		harness.OK(t, err)
	}
	harness.OK(t, controllers.Same("calls allowed at two endpoints", o.usage().Allowed, 16))
}

// A VPC whose NICs would get no address says so.
func TestComplaints(t *testing.T) {
	subnet := func(cidr, six string) vpcport.Subnet {
		s := vpcport.Subnet{ID: "s-" + cidr, CIDR: netip.MustParsePrefix(cidr)}
		if six != "" {
			s.IPv6CIDR = netip.MustParsePrefix(six)
		}
		return s
	}
	four, six, both := subnet("10.0.0.0/20", ""), subnet("2001:db8::/64", ""), subnet("10.0.16.0/20", "2001:db8:0:1::/64")
	ofEC2 := func(families string) v1alpha1.VPCSpec {
		return v1alpha1.VPCSpec{Provider: v1alpha1.ProviderEC2, EC2: &v1alpha1.EC2Spec{IPFamilies: families}}
	}
	in := func(spec v1alpha1.VPCSpec, subnets ...string) v1alpha1.VPCSpec {
		spec.EC2.Subnets = subnets
		return spec
	}
	for _, tt := range []struct {
		spec    v1alpha1.VPCSpec
		subnets []vpcport.Subnet
		says    string // empty: all is well
	}{
		{ofEC2(""), []vpcport.Subnet{four}, ""},
		{v1alpha1.VPCSpec{Provider: v1alpha1.ProviderEC2}, []vpcport.Subnet{four}, ""},
		{v1alpha1.VPCSpec{Provider: v1alpha1.ProviderEC2}, nil, "has no subnet that has IPv4 addresses"},
		{in(ofEC2("dual"), both.ID, "subnet-6"), []vpcport.Subnet{four, both}, ""},
		{in(ofEC2("dual"), "subnet-6"), []vpcport.Subnet{four, both}, "spec.ec2.subnets: none of them is a subnet of vpc-1 that has IPv4 addresses"},
		{in(ofEC2("ipv6"), "subnet-4"), []vpcport.Subnet{six}, "spec.ec2.subnets: none of them is a subnet of vpc-1 that has IPv6 addresses"},
		{ofEC2("ipv6"), []vpcport.Subnet{six}, ""},
		{ofEC2("ipv6"), nil, "spec.ec2.ipFamilies: is ipv6, and none of the subnets of vpc-1 where NICs may be has an IPv6 CIDR block"},
		{ofEC2("dual"), []vpcport.Subnet{four, both}, ""},
		{in(ofEC2("dual"), both.ID), []vpcport.Subnet{four, both}, ""},
		{in(ofEC2("dual"), four.ID), []vpcport.Subnet{four, both}, "none of the subnets of vpc-1 where NICs may be has an IPv6 CIDR block"},
		{ofEC2("dual"), []vpcport.Subnet{four}, "spec.ec2.ipFamilies: is dual, and none of the subnets of vpc-1 where NICs may be has an IPv6 CIDR block"},
	} {
		got := complaint(tt.spec, vpcport.Network{ID: "vpc-1", Subnets: tt.subnets})
		if (got == nil) != (tt.says == "") || got != nil && (got.reason != ReasonNoSubnet || !strings.Contains(got.message, tt.says)) {
			t.Errorf("%+v with %v: %+v, want %q", tt.spec, tt.subnets, got, tt.says)
		}
	}
}
