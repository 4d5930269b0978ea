package nics

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/test/harness/sourcetest"
)

// onlyPorts are the rules of a node whose pods have only ports, ofENIs those of a node whose pods' first
// interface has an address of an ENI or is a branch.
var (
	onlyPorts = rules{firstIsPort: true}
	ofENIs    = rules{firstMayBeBranch: true, enforcing: plug.Strict}
)

// The NICs of a pod depend on the settings, its annotations and its namespace's annotation.
func TestRequestedNICs(t *testing.T) {
	type annotations = map[string]string
	const vpc, nics = v1alpha1.AnnotationVPC, v1alpha1.AnnotationNICs
	only, beside := onlyPorts, rules{}
	for name, c := range map[string]struct {
		rules   rules
		passed  annotations // nil: the runtime passes none
		ns      string      // the namespace's VPC; "?": not known yet
		ifName  string      // eth0 unless set
		noUID   bool
		want    string // names; empty: no NICs
		waiting bool
		err     string
	}{
		"VPC of the namespace":                   {rules: only, passed: annotations{}, ns: "blue", want: "eth0"},
		"VPC of the pod":                         {rules: only, passed: annotations{vpc: "red"}, ns: "?", want: "eth0"},
		"several NICs":                           {rules: only, passed: annotations{nics: "[{}, {name: data}]"}, ns: "blue", want: "eth0 data"},
		"first interface with another name":      {rules: only, passed: annotations{}, ns: "blue", ifName: "net1", err: "names no NIC net1"},
		"namespace unknown":                      {rules: only, passed: annotations{}, ns: "?", waiting: true},
		"no VPC":                                 {rules: only, passed: annotations{}, err: "metadata.annotations[berth.dev/vpc] is missing"},
		"opted out where a NIC is required":      {rules: only, passed: annotations{vpc: ""}, ns: "blue", err: "is missing"},
		"not a list":                             {rules: only, passed: annotations{nics: "eth0"}, ns: "blue", err: "expected a list"},
		"no UID":                                 {rules: only, passed: annotations{}, ns: "blue", noUID: true, err: "K8S_POD_UID is missing"},
		"annotations not passed":                 {rules: only, ns: "blue", err: "passes no annotations"},
		"annotations not passed, ignored":        {rules: rules{firstIsPort: true, ignoreUntold: true}, ns: "blue", want: "eth0"},
		"beside: no VPC":                         {rules: beside, passed: annotations{}},
		"beside: default NIC":                    {rules: beside, passed: annotations{}, ns: "blue", want: "eth1"},
		"beside: NICs without a VPC":             {rules: beside, passed: annotations{nics: "[{}]"}, err: "neither the pod nor its namespace names a VPC"},
		"beside: name of the first interface":    {rules: beside, passed: annotations{nics: "[{name: eth0}]"}, ns: "blue", err: "is the name of the pod's first interface"},
		"beside: opted out":                      {rules: beside, passed: annotations{vpc: ""}, ns: "blue"},
		"beside: another interface":              {rules: beside, passed: annotations{}, ns: "blue", ifName: "net1"},
		"beside: namespace unknown":              {rules: beside, passed: annotations{}, ns: "?", waiting: true},
		"beside: annotations not passed, no VPC": {rules: beside},
		"beside: annotations not passed, VPC of the namespace": {rules: beside, ns: "blue", err: "has its pods in VPC blue"},
		"beside: annotations not passed, ignored":              {rules: rules{ignoreUntold: true}, ns: "blue"},
		"of ENIs: default NIC":                                 {rules: ofENIs, passed: annotations{}, ns: "blue", want: "eth1"},
		"of ENIs: first interface":                             {rules: ofENIs, passed: annotations{nics: "[{}, {name: eth0}]"}, ns: "blue", want: "eth1 eth0"},
		"of ENIs: first interface with tap":                    {rules: ofENIs, passed: annotations{nics: "[{name: eth0, binding: tap}]"}, ns: "blue", err: "the node routes to it"},
		"of ENIs: no VPC":                                      {rules: ofENIs, passed: annotations{}},
		"of ENIs: another interface":                           {rules: ofENIs, passed: annotations{nics: "[{name: net1}]"}, ns: "blue", ifName: "net1"},
		"beside: annotations not passed, namespace unknown":    {rules: beside, ns: "?", waiting: true},
	} {
		t.Run(name, func(t *testing.T) {
			req := sourcetest.Request(1)
			req.Options = attachment.PodOptions{AnnotationsKnown: c.passed != nil, Annotations: c.passed}
			if c.ifName != "" {
				req.Key.IfName = c.ifName
			}
			if c.noUID {
				req.Pod.UID = ""
			}
			ns := c.ns
			if ns == "?" {
				ns = ""
			}
			w, err := c.rules.of(req, ns, c.ns != "?")
			switch {
			case c.err != "":
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("of() = %+v, %v; want error containing %q", w, err, c.err)
				}
			case err != nil || (w.waiting != "") != c.waiting || w.any != (c.want != "") || strings.Join(w.names, " ") != c.want:
				t.Errorf("of() = %+v, %v; want names %q, waiting %t", w, err, c.want, c.waiting)
			}
		})
	}
}

// A PodNIC with an invalid field is rejected with the name of the field.
func TestInvalidPodNICs(t *testing.T) {
	for want, spoil := range map[string]func(*v1alpha1.PodNIC){
		"status.plug is missing":                                func(o *v1alpha1.PodNIC) { o.Status.Plug = nil },
		`status.plug.bridge is "br-ex", expected one of br-int`: func(o *v1alpha1.PodNIC) { o.Status.Plug.Bridge = "br-ex" },
		"status.plug.bridge is missing":                         func(o *v1alpha1.PodNIC) { o.Status.Plug.Bridge = "" },
		"Kind":                                                  func(o *v1alpha1.PodNIC) { o.Status.Plug.Type = "SRIOV" },
		"VPCNetns": func(o *v1alpha1.PodNIC) {
			o.Status.Plug = &v1alpha1.PortPlug{Type: v1alpha1.PlugNetns, Netns: "../1/ns/net"}
		},
		"status.pod is missing, expected the pod of spec.pod": func(o *v1alpha1.PodNIC) { o.Status.Pod = &v1alpha1.PodReference{Name: "x", UID: "y"} },
		"expected that of spec.portID":                        func(o *v1alpha1.PodNIC) { o.Spec.PortID = portID(9, 9) },
		`status.mac is "fa:16"`:                               func(o *v1alpha1.PodNIC) { o.Status.MAC = "fa:16" },
		`status.mac is "02:00:5e:10:00:00:00:01"`:             func(o *v1alpha1.PodNIC) { o.Status.MAC = "02:00:5e:10:00:00:00:01" },
		"Interface.MAC":                                       func(o *v1alpha1.PodNIC) { o.Status.MAC = "ff:ff:ff:ff:ff:ff" },
		"Interface.MTU":                                       func(o *v1alpha1.PodNIC) { o.Status.MTU = 1 << 20 },
		"PortID":                                              func(o *v1alpha1.PodNIC) { o.Status.PortID = "; rm -rf / #" },
		"Pod.IfName":                                          func(o *v1alpha1.PodNIC) { o.Status.Interface = "../eth0" },
		"status.addresses is missing":                         func(o *v1alpha1.PodNIC) { o.Status.Addresses = nil },
		"status.addresses[0].cidr":                            func(o *v1alpha1.PodNIC) { o.Status.Addresses[0].CIDR = "192.168.0.12" },
		"Interface.Addresses[0]":                              func(o *v1alpha1.PodNIC) { o.Status.Addresses[0].CIDR = "127.0.0.1/8" },
		"status.addresses[0].gateway":                         func(o *v1alpha1.PodNIC) { o.Status.Addresses[0].Gateway = "router" },
		"Interface.Gateways[0]":                               func(o *v1alpha1.PodNIC) { o.Status.Addresses[0].Gateway = "192.168.0.11" },
		"status.routes[0].destination":                        func(o *v1alpha1.PodNIC) { o.Status.Routes = []v1alpha1.PortRoute{{Destination: "all"}} },
		"status.routes[0].gateway": func(o *v1alpha1.PodNIC) {
			o.Status.Routes = []v1alpha1.PortRoute{{Destination: "10.0.0.0/8", Gateway: "x"}}
		},
		`Trunk: ""`:                        onTrunk("", 7),
		`Trunk: "ens6"`:                    onTrunk("ens6", 7),
		`Trunk: "0a:ff:ff:00:00:01:02:03"`: onTrunk("0a:ff:ff:00:00:01:02:03", 7),
		`Trunk: "ff:ff:ff:ff:ff:ff"`:       onTrunk("ff:ff:ff:ff:ff:ff", 7),
		`VLAN: "0": want 1 to 4094`:        onTrunk("0a:ff:ff:00:00:01", 0),
		`VLAN: "4095"`:                     onTrunk("0a:ff:ff:00:00:01", 4095),
		`VLAN: "-7"`:                       onTrunk("0a:ff:ff:00:00:01", -7),
		"Binding":                          func(o *v1alpha1.PodNIC) { o.Spec.Binding = "macvtap" },
		"want tap, or none, for kind Netns": func(o *v1alpha1.PodNIC) {
			o.Spec.Binding = v1alpha1.BindingBridge
			o.Status.Plug = &v1alpha1.PortPlug{Type: v1alpha1.PlugNetns, Netns: "vpc-ns1"}
		},
		`spec.tap.owner is "-1"`: func(o *v1alpha1.PodNIC) {
			owner := int64(-1)
			o.Spec.Binding, o.Spec.Tap = v1alpha1.BindingTap, &v1alpha1.TapDevice{Owner: &owner}
		},
		"Interface.Routes[0].Dst": func(o *v1alpha1.PodNIC) { o.Status.Routes = []v1alpha1.PortRoute{{Destination: "0.0.0.0/0"}} },
	} {
		o := podNIC(1, 0, v1alpha1.PhaseBound)
		spoil(o)
		got := read(o, []string{"br-int"}, onlyPorts)
		if !errors.Is(got.err, plug.ErrInvalid) || !strings.Contains(got.err.Error(), want) || !strings.Contains(got.err.Error(), "PodNIC ns/pod1-eth0: ") {
			t.Errorf("error = %v, want error containing %q", got.err, want)
		}
		o.Status.Phase = v1alpha1.PhaseCreated
		if got := read(o, []string{"br-int"}, onlyPorts); got.err != nil {
			t.Errorf("a PodNIC that is not bound is rejected: %v", got.err)
		}
	}
	o := podNIC(1, 0, v1alpha1.PhaseBound)
	onTrunk("0a:ff:ff:00:00:01", 7)(o)
	if got := read(o, nil, onlyPorts); got.err != nil || ref(recordOf(1), got.nic).Trunk != "0a:ff:ff:00:00:01" || ref(recordOf(1), got.nic).VLAN != 7 {
		t.Errorf("VLAN on a node without bridges = %+v", got)
	}
	o = podNIC(1, 0, v1alpha1.PhaseActive)
	o.Status.Routes = []v1alpha1.PortRoute{{Destination: "10.9.0.1/16", Gateway: "192.168.0.254"}}
	got := read(o, []string{"br-int"}, onlyPorts)
	if got.err != nil || got.nic.Routes[0].Destination.String() != "10.9.0.0/16" {
		t.Errorf("read() = %+v, want a route to 10.9.0.0/16", got)
	}
	o.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionBound, Status: metav1.ConditionTrue}, {Type: v1alpha1.ConditionPortReady, Reason: "a", Message: "two\nlines" + strings.Repeat(".", 1000)}}
	if got := read(o, nil, onlyPorts).wrong; len(got) != 1 || strings.Contains(got[0].message, "\n") || len(got[0].message) > longestMessage+3 {
		t.Errorf("conditions = %+v, want one with a bounded message on one line", got)
	}
}

// onTrunk makes a PodNIC's port a VLAN.
func onTrunk(trunk string, vlan int32) func(*v1alpha1.PodNIC) {
	return func(o *v1alpha1.PodNIC) {
		o.Status.Plug = &v1alpha1.PortPlug{Type: v1alpha1.PlugVLAN, TrunkMAC: trunk, VLAN: vlan}
	}
}

// A PodNIC's binding to a virtual machine has defaults.
func TestBindings(t *testing.T) {
	id := func(n int64) *int64 { return &n }
	for name, c := range map[string]struct {
		binding v1alpha1.NICBinding
		tap     *v1alpha1.TapDevice
		want    plug.TapDevice
	}{
		"containers": {},
		"bridge":     {binding: v1alpha1.BindingBridge},
		"tap":        {v1alpha1.BindingTap, nil, plug.TapDevice{Owner: 107, Group: 107}},
		"owner":      {v1alpha1.BindingTap, &v1alpha1.TapDevice{Owner: id(0)}, plug.TapDevice{}},
		"group":      {v1alpha1.BindingTap, &v1alpha1.TapDevice{Group: id(36), MultiQueue: true}, plug.TapDevice{Owner: 107, Group: 36, MultiQueue: true}},
	} {
		o := podNIC(1, 0, v1alpha1.PhaseActive)
		o.Spec.Binding, o.Spec.Tap = c.binding, c.tap
		got := read(o, []string{"br-int"}, onlyPorts)
		if got.err != nil {
			t.Errorf("%s: unexpected error: %v", name, got.err)
			continue
		}
		rec := recordOf(1, got.nic)
		if w := want(rec, got.nic); w.Binding != plug.Binding(c.binding) || w.Tap != c.want || w.VMUUID != rec.Pod.UID {
			t.Errorf("%s: want() = %+v", name, w)
		}
	}
}

// A NIC is checked when a link that it depends on changes: the links of its port, and the trunk of a VLAN. An
// empty name stands for any link.
func TestLinkChanged(t *testing.T) {
	trunk, other := net.HardwareAddr{0x0a, 0xff, 0xff, 0, 0, 1}, net.HardwareAddr{0x0a, 0xff, 0xff, 0, 0, 2}
	o := podNIC(1, 0, v1alpha1.PhaseActive)
	ovs := read(o, []string{"br-int"}, onlyPorts).nic
	onTrunk("0A:FF:FF:00:00:01", 7)(o)
	vlan := read(o, nil, onlyPorts).nic
	routed := read(o, nil, ofENIs).nic
	routed.HostLink = "bth1"
	rec := recordOf(1)
	for _, c := range []struct {
		nic     attachment.NIC
		link    string
		address net.HardwareAddr
		want    bool
	}{
		{ovs, "tap" + ovs.Port[:11], trunk, true}, {ovs, "qvo" + ovs.Port[:11], trunk, true}, {ovs, "", trunk, true},
		{ovs, "tap" + ovs.Port[:10], trunk, false}, {ovs, "tap" + ovs.Port[1:12], trunk, false}, {ovs, "eth0", trunk, false}, {ovs, "tap", trunk, false},
		{vlan, "ens6", trunk, true}, {vlan, "", nil, true}, {vlan, "ens7", other, false}, {vlan, "tap" + vlan.Port[:11], nil, false},
		{routed, "ens6", trunk, true}, {routed, "bth1", nil, true}, {routed, "vl" + ref(rec, routed).Short(), nil, true}, {routed, "bth2", nil, false},
		{routed, "vl" + routed.Port[:11], nil, false}, {routed, "ens7", other, false}, {routed, "", nil, true},
	} {
		n := &NICs{observed: newObserved(), drift: newDrift()}
		n.observed.plugged[c.nic.UID] = held{rec, c.nic}
		n.LinkChanged(c.link, c.address)
		if got := len(n.drift.changed) > 0; got != c.want || n.drift.all != (c.link == "") {
			t.Errorf("%s, %q %s: drift = %v (all: %v), want %v", c.nic.Plug.Type, c.link, c.address, got, n.drift.all, c.want)
		}
	}
	if _, others := provider(routed); !others {
		t.Error("provider() does not wait for the trunk of a routed VLAN")
	}
}

// PodNICs may exclude each other, and one NIC has the default route.
func TestDecide(t *testing.T) {
	of := func(list ...*v1alpha1.PodNIC) *observed {
		b := newObserved()
		b.namespaces[namespace] = "blue"
		b.sync.SetListed(true, podNICs)
		for _, o := range list {
			b.put(read(o, []string{"br-int"}, onlyPorts))
		}
		return b
	}
	with := func(i, k int, change func(*v1alpha1.PodNICStatus)) *v1alpha1.PodNIC {
		o := podNIC(i, k, v1alpha1.PhaseBound)
		change(&o.Status)
		return o
	}
	plain := func(*v1alpha1.PodNICStatus) {}
	for name, c := range map[string]struct {
		list []*v1alpha1.PodNIC
		nics string // names, with * after the one with the default route
		err  string
		wait string // reason
	}{
		"one":                          {list: []*v1alpha1.PodNIC{with(1, 0, plain)}, nics: "eth0*"},
		"PodNIC not in the annotation": {list: []*v1alpha1.PodNIC{with(1, 0, plain), with(1, 1, plain)}, nics: "eth0* eth1"},
		"PodNIC not in the annotation, not bound": {list: []*v1alpha1.PodNIC{with(1, 0, plain), with(1, 1, func(s *v1alpha1.PodNICStatus) { s.Phase = v1alpha1.PhaseCreated })}, wait: "not-bound"},
		"default route of another NIC":            {list: []*v1alpha1.PodNIC{with(1, 0, plain), with(1, 1, func(s *v1alpha1.PodNICStatus) { s.DefaultRoute = true })}, nics: "eth0 eth1*"},
		"two default routes": {list: []*v1alpha1.PodNIC{
			with(1, 0, func(s *v1alpha1.PodNICStatus) { s.DefaultRoute = true }), with(1, 1, func(s *v1alpha1.PodNICStatus) { s.DefaultRoute = true }),
		}, err: "status.defaultRoute is true in both"},
		"same interface twice": {list: []*v1alpha1.PodNIC{with(1, 0, plain), with(1, 1, func(s *v1alpha1.PodNICStatus) { s.Interface = "eth0" })}, err: `status.interface is "eth0" in both`},
		"same port twice":      {list: []*v1alpha1.PodNIC{with(1, 0, plain), with(1, 1, func(s *v1alpha1.PodNICStatus) { s.PortID = portID(1, 0) })}, err: "status.portID"},
		"no PodNIC yet":        {wait: "no-podnic"},
		"failed":               {list: []*v1alpha1.PodNIC{with(1, 0, func(s *v1alpha1.PodNICStatus) { s.Phase = v1alpha1.PhaseFailed })}, wait: "not-bound"},
	} {
		t.Run(name, func(t *testing.T) {
			v := of(c.list...).decide(onlyPorts, requestWith(1, nil))
			var got []string
			for _, n := range v.nics {
				if n.DefaultRoute {
					n.IfName += "*"
				}
				got = append(got, n.IfName)
			}
			switch {
			case c.err != "" && (v.err == nil || !strings.Contains(v.err.Error(), c.err) || !errors.Is(v.err, plug.ErrInvalid)),
				c.err == "" && v.err != nil, (c.wait != "") != (v.wait != nil), c.wait != "" && v.wait.Reason != c.wait, strings.Join(got, " ") != c.nics:
				t.Errorf("decide() = %+v, want NICs %q, wait %q, error %q", v, c.nics, c.wait, c.err)
			}
		})
	}
	// The node routes to a branch that is the first interface, and it has the default route. Other NICs are
	// plugged as with any source.
	branch := func(name string) func(*v1alpha1.PodNICStatus) {
		return func(s *v1alpha1.PodNICStatus) {
			s.Interface = name
			s.Plug = &v1alpha1.PortPlug{Type: v1alpha1.PlugVLAN, TrunkMAC: "0a:ff:ff:00:00:01", VLAN: 7}
		}
	}
	for name, c := range map[string]struct {
		rules rules
		first func(*v1alpha1.PodNICStatus)
		nics  string // names, with kinds and enforcing
		err   string
	}{
		"branch as first interface":         {ofENIs, branch("eth0"), "eth0:RoutedVLAN:strict:true eth1:VLAN::false", ""},
		"branch in standard mode":           {rules{firstMayBeBranch: true, enforcing: plug.Standard}, branch("eth0"), "eth0:RoutedVLAN:standard:true eth1:VLAN::false", ""},
		"further branches":                  {ofENIs, branch("eth2"), "eth1:VLAN::false eth2:VLAN::false", ""},
		"first interface is a port":         {onlyPorts, branch("eth0"), "eth0:VLAN::true eth1:VLAN::false", ""},
		"first interface may not be a port": {rules{}, branch("eth0"), "", `status.interface is "eth0", expected another: it is the name of the pods' first interface, which is not a port on this node`},
		"not a branch":                      {ofENIs, plain, "", `status.plug.type is "OVS", expected VLAN of eth0`},
		"two addresses of a family": {ofENIs, func(s *v1alpha1.PodNICStatus) {
			branch("eth0")(s)
			s.Addresses = append(s.Addresses, v1alpha1.PortAddress{CIDR: "192.168.0.99/24"})
		}, "", "one address, or one of each IP family"},
		"both families": {ofENIs, func(s *v1alpha1.PodNICStatus) {
			branch("eth0")(s)
			s.Addresses = append(s.Addresses, v1alpha1.PortAddress{CIDR: "2001:db8::9/64", Gateway: "fe80:ec2::1"})
		}, "eth0:RoutedVLAN:strict:true:192.168.0.11/24:2001:db8::9/64 eth1:VLAN::false", ""},
		"IPv6 only": {ofENIs, func(s *v1alpha1.PodNICStatus) {
			branch("eth0")(s)
			s.Addresses = []v1alpha1.PortAddress{{CIDR: "2001:db8::9/64", Gateway: "fe80:ec2::1"}}
		}, "eth0:RoutedVLAN:strict:true:2001:db8::9/64 eth1:VLAN::false", ""},
		"no IPv6 router": {ofENIs, func(s *v1alpha1.PodNICStatus) {
			branch("eth0")(s)
			s.Addresses = append(s.Addresses, v1alpha1.PortAddress{CIDR: "2001:db8::9/64"})
		}, "", "the router of the subnet of each address"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newObserved()
			b.namespaces[namespace] = "blue"
			b.sync.SetListed(true, podNICs)
			further := with(1, 1, branch("eth1"))
			for _, o := range []*v1alpha1.PodNIC{with(1, 0, c.first), further} {
				b.put(read(o, []string{"br-int"}, c.rules))
			}
			v := b.decide(c.rules, requestWith(1, map[string]string{v1alpha1.AnnotationNICs: "[{name: eth1}]"}))
			if c.rules.firstIsPort {
				v = b.decide(c.rules, requestWith(1, nil))
			}
			var got []string
			for _, n := range v.nics {
				text := fmt.Sprintf("%s:%s:%s:%v", n.IfName, n.Plug.Type, n.Plug.Enforcing, n.DefaultRoute)
				for _, a := range n.Addresses {
					if strings.Contains(c.nics, "db8") && n.IfName == "eth0" {
						text += ":" + a.CIDR.String()
					}
				}
				got = append(got, text)
				w := want(recordOf(1), n)
				if err := w.Validate(); err != nil || string(w.Enforcing) != n.Plug.Enforcing {
					t.Errorf("plugged as %+v, Validate() = %v", w, err)
				}
			}
			slices.Sort(got)
			if strings.Join(got, " ") != c.nics || (v.err == nil) != (c.err == "") || v.err != nil && (!strings.Contains(v.err.Error(), c.err) || !errors.Is(v.err, plug.ErrInvalid)) {
				t.Errorf("decision = %v, %+v; want %q, error %q", got, v, c.nics, c.err)
			}
		})
	}
	// With another source no NIC has the default route unless it requests it, and a pod whose annotations are unknown
	// gets the NICs of its existing PodNICs.
	b := of(with(1, 1, plain))
	v := b.decide(rules{}, requestWith(1, nil))
	if v.err != nil || len(v.nics) != 1 || v.nics[0].DefaultRoute {
		t.Errorf("decide() with another source = %+v, want one NIC without the default route", v)
	}
	b.namespaces[namespace] = ""
	untold := sourcetest.Request(1)
	untold.Options.AnnotationsKnown = false
	if v := b.decide(rules{}, untold); v.err != nil || v.wait != nil || len(v.nics) != 1 {
		t.Errorf("decide() without annotations = %+v, want the existing NIC", v)
	}
	untold.Key.IfName = "net1"
	if v := b.decide(rules{}, untold); v.err != nil || v.wait != nil || len(v.nics) != 0 {
		t.Errorf("decision for an interface that was added later = %+v, want no NICs", v)
	}
	// While the API server is unreachable, that is the reason.
	b.sync.Set(podNICs, errors.New("connection refused"))
	if v := b.decide(rules{}, requestWith(2, map[string]string{v1alpha1.AnnotationVPC: "blue"})); v.wait == nil || v.wait.Reason != "unreachable" {
		t.Errorf("decide() without the API server = %+v, want reason unreachable", v)
	}
	if got := word("Subnet Full\n" + strings.Repeat("x", 99)); len(got) != 40 || !strings.HasPrefix(got, "SubnetFullx") {
		t.Errorf("word() = %q", got)
	}
}
