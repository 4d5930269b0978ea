package nicrequest

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"

	"github.com/berthnet/berth/api/v1alpha1"
)

// NIC is one that a pod is to have.
type NIC struct {
	Index          int    // in the annotation; 0 for the default one of a pod without any
	Name           string // in the pod
	Addresses      []Address
	SecurityGroups []string // nil: the VPC's
	PortID         string   // a port that is there; else one is made
	Object         string   // a PodNIC that is there; else one is made
	DefaultRoute   bool     // packets to elsewhere leave by it
	Binding        string   // how a virtual machine in the pod gets it; empty: it is the containers'
	Tap            *Tap     // of binding tap; nil: as usual
}

// Address is an address that is asked for: of a subnet, by its ID or name, or of the one
// that has the IP, or a certain one.
type Address struct {
	Subnet string
	IP     netip.Addr
}

// FirstInterface is the name by which container runtimes ask for a pod's first interface.
const FirstInterface = "eth0"

// First is the pod's first interface, by which the runtime tells the pod's address.
type First struct {
	Name   string // such as eth0
	IsPort bool   // it is one of the NICs; else it comes from elsewhere
	// MayBePort: it comes from elsewhere unless one of the NICs has its name, which is a branch
	// interface of EC2 that the node routes to. With IsPort too a pod is known to have that, if it
	// lacks it. Without both the name is taken.
	MayBePort bool
}

// In is the first interface of pods with NICs in VPCs of a provider: of EC2's alone it may be a
// port. Of a VPC of which nothing is known (empty) it may.
func (f First) In(provider v1alpha1.VPCProvider) First {
	f.MayBePort = f.MayBePort && (provider == "" || provider == v1alpha1.ProviderEC2)
	return f
}

// IsNIC tells whether a NIC of a name is the first interface.
func (f First) IsNIC(name string) bool { return name == f.Name && (f.IsPort || f.MayBePort) }

// isBranch tells whether a NIC of a name is the first interface and a branch interface, to which
// the node routes.
func (f First) isBranch(name string) bool { return name == f.Name && f.MayBePort }

// linkName is stricter than the kernel's dev_valid_name.
var linkName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,14}$`)

// taken are names that are folders of /proc/sys/net beside those of links, or the
// loopback link's.
var taken = []string{"lo", "all", "default"}

var (
	portID     = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z-]{10,63}$`)
	objectName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)
)

// Complete gives each NIC its name, adds the default one where there is none, and finds
// what contradicts itself. Unnamed NICs take the lowest free name eth0, eth1, ..., but that of
// the first interface only where that is a port always; with most above 0 there may be no more
// NICs than that.
func Complete(entries []Entry, first First, most int) ([]NIC, Errors) {
	var errs Errors
	if len(entries) == 0 {
		entries = []Entry{{}}
	}
	if most > 0 && len(entries) > most {
		errs.add(fieldNICs, "has %d NICs, expected %d at most (spec.maxNICsPerPod of the VPC)", len(entries), most)
	}
	nics := make([]NIC, len(entries))
	for i, e := range entries {
		nics[i] = e.nic(i, &errs)
	}
	name(nics, first, &errs)
	checkOnce(nics, &errs)
	checkBranch(nics, first, &errs)
	return nics, errs
}

// nic is the entry's, without what depends on others.
func (e Entry) nic(index int, errs *Errors) NIC {
	n := NIC{Index: index, Name: e.Name, SecurityGroups: e.SecurityGroups, PortID: e.PortID, Object: e.NIC, DefaultRoute: e.DefaultRoute, Binding: e.Binding, Tap: e.Tap}
	own := e.Subnet != "" || e.IP != "" || e.Addresses != nil || e.SecurityGroups != nil
	switch {
	case e.NIC != "" && (own || e.PortID != "" || e.Binding != "" || e.Tap != nil):
		errs.add(field(index, "nic"), "excludes subnet, ip, addresses, securityGroups, portID, binding and tap, which the PodNIC has already")
	case e.NIC != "" && !objectName.MatchString(e.NIC):
		errs.add(field(index, "nic"), "is %.80q, expected the name of a PodNIC", e.NIC)
	case e.PortID != "" && own:
		errs.add(field(index, "portID"), "excludes subnet, ip, addresses and securityGroups, which the port has already")
	case e.PortID != "" && !portID.MatchString(e.PortID):
		errs.add(field(index, "portID"), "is %.80q, expected the ID of a port, such as a2815656-76f7-46d4-9d11-057063db1a14", e.PortID)
	}
	e.checkBinding(index, errs)
	for i, g := range e.SecurityGroups {
		if len(g) > 255 || slices.Index(e.SecurityGroups, g) < i {
			errs.add(field(index, fmt.Sprintf("securityGroups[%d]", i)), "is %.80q, expected the ID of a group that is not named before", g)
		}
	}
	n.Addresses = e.addresses(index, errs)
	return n
}

// checkBinding finds what no virtual machine can have.
func (e Entry) checkBinding(index int, errs *Errors) {
	switch v1alpha1.NICBinding(e.Binding) {
	case "", v1alpha1.BindingBridge, v1alpha1.BindingTap:
	default:
		errs.add(field(index, "binding"), "is %.40q, expected %s or %s, for a virtual machine in the pod", e.Binding, v1alpha1.BindingBridge, v1alpha1.BindingTap)
	}
	if e.Tap != nil && e.NIC == "" && e.Binding != string(v1alpha1.BindingTap) {
		errs.add(field(index, "tap"), "is what a tap device is like, expected binding: %s with it", v1alpha1.BindingTap)
	}
}

// addresses are what subnet and ip say, or addresses.
func (e Entry) addresses(index int, errs *Errors) []Address {
	list, at := e.Addresses, func(i int, key string) string { return field(index, fmt.Sprintf("addresses[%d].%s", i, key)) }
	switch {
	case e.Addresses != nil && (e.Subnet != "" || e.IP != ""):
		errs.add(field(index, "addresses"), "excludes subnet and ip, which are one address")
	case e.Subnet != "" || e.IP != "":
		list, at = []EntryAddress{{e.Subnet, e.IP}}, func(_ int, key string) string { return field(index, key) }
	case len(e.Addresses) > 2:
		errs.add(field(index, "addresses"), "has %d addresses, expected one, or one of each family", len(e.Addresses))
	}
	var out []Address
	for i, a := range list {
		if a.Subnet == "" && a.IP == "" {
			errs.add(at(i, "subnet"), "is missing, expected a subnet, an ip or both")
		}
		if len(a.Subnet) > 255 {
			errs.add(at(i, "subnet"), "is %d bytes long, expected the ID or name of a subnet", len(a.Subnet))
		}
		address := Address{Subnet: a.Subnet}
		if a.IP != "" {
			ip, err := netip.ParseAddr(a.IP)
			if err != nil || ip.Zone() != "" || ip.Is4In6() || !ip.IsGlobalUnicast() {
				errs.add(at(i, "ip"), "is %.80q, expected the address of one host, such as 192.168.0.12", a.IP)
			}
			address.IP = ip
		}
		out = append(out, address)
	}
	if len(out) == 2 && out[0].IP.IsValid() && out[1].IP.IsValid() && out[0].IP.Is4() == out[1].IP.Is4() {
		errs.add(at(1, "ip"), "is of the same family as that before, expected one address of a family")
	}
	return out
}

// name names the unnamed and finds names that cannot be.
func name(nics []NIC, first First, errs *Errors) {
	holder := map[string]int{} // by name; the index
	for _, n := range nics {
		switch other, twice := holder[n.Name]; {
		case n.Name == "":
		case !linkName.MatchString(n.Name) || slices.Contains(taken, n.Name):
			errs.add(field(n.Index, "name"), "is %.80q, expected a name such as eth0: 1 to 15 letters, digits, dots, hyphens and underscores, and not lo, all or default", n.Name)
		case twice:
			errs.add(field(n.Index, "name"), "%s is the name of %s too", n.Name, field(other, ""))
		case n.Name == first.Name && !first.IsNIC(n.Name):
			errs.add(field(n.Index, "name"), "%s is the name of the pod's first interface, which is no port here", n.Name)
		default:
			holder[n.Name] = n.Index
		}
	}
	if !first.IsPort {
		holder[first.Name] = -1
	}
	for i := range nics {
		for k := 0; nics[i].Name == ""; k++ {
			free := fmt.Sprintf("eth%d", k)
			if _, used := holder[free]; !used {
				nics[i].Name, holder[free] = free, i
			}
		}
	}
	if _, has := holder[first.Name]; first.IsPort && !has && len(*errs) == 0 {
		errs.add(fieldNICs, "names no NIC %s, expected one, as by that name the runtime knows the pod's address", first.Name)
	}
}

// checkOnce finds what only one NIC can have.
func checkOnce(nics []NIC, errs *Errors) {
	ports, objects, route := map[string]int{}, map[string]int{}, -1
	for _, n := range nics {
		if other, twice := ports[n.PortID]; n.PortID != "" && twice {
			errs.add(field(n.Index, "portID"), "is that of %s", field(other, ""))
		}
		if other, twice := objects[n.Object]; n.Object != "" && twice {
			errs.add(field(n.Index, "nic"), "is that of %s", field(other, ""))
		}
		if n.DefaultRoute && route >= 0 {
			errs.add(field(n.Index, "defaultRoute"), "is true, and of %s too", field(route, ""))
		}
		if n.DefaultRoute {
			route = n.Index
		}
		ports[n.PortID], objects[n.Object] = n.Index, n.Index
	}
}

// checkBranch finds what a pod cannot have whose first interface is a branch interface: the node
// routes to that, and so all that the pod sends elsewhere leaves by it.
func checkBranch(nics []NIC, first First, errs *Errors) {
	if !slices.ContainsFunc(nics, func(n NIC) bool { return first.isBranch(n.Name) }) {
		return
	}
	for _, n := range nics {
		switch own := first.isBranch(n.Name); {
		case own && n.Binding != "":
			errs.add(field(n.Index, "binding"), "is %.40q of %s, the pod's first interface, expected none: the node routes to it, and no virtual machine can have it", n.Binding, n.Name)
		case !own && n.DefaultRoute:
			errs.add(field(n.Index, "defaultRoute"), "is true of %s, and the pod's first interface %s is a branch interface, which has the default route", n.Name, first.Name)
		}
	}
}
