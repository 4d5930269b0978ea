package nicrequest

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"

	"github.com/berthnet/berth/api/v1alpha1"
)

// NIC is a NIC that a pod asks for.
type NIC struct {
	Index          int    // in the annotation; 0 for the default NIC of a pod that lists none
	Name           string // in the pod
	Addresses      []Address
	SecurityGroups []string // nil: those of the VPC
	PortID         string   // an existing port; empty: a new one
	Object         string   // an existing PodNIC; empty: a new one
	DefaultRoute   bool     // it has the pod's default route
	Binding        string   // how a virtual machine in the pod uses it; empty: containers do
	Tap            *Tap     // with the binding tap; nil: the defaults
}

// Address is an address that a NIC asks for: any of a subnet, by its ID or name, or a certain one.
type Address struct {
	Subnet string
	IP     netip.Addr
}

// FirstInterface is the name that container runtimes give a pod's first interface.
const FirstInterface = "eth0"

// First is the pod's first interface, whose address Kubernetes knows the pod by.
type First struct {
	Name   string // such as eth0
	IsPort bool   // it is one of the NICs; otherwise another source provides it
	// MayBePort says that it is a NIC if one of the NICs has its name, which then is an EC2 branch interface
	// that the node routes to. Together with IsPort the pod is known to have such a NIC even if it does not
	// list it. With neither, no NIC may have the name.
	MayBePort bool
}

// In is the first interface of pods with NICs in VPCs of a provider. MayBePort holds only with EC2, or while the provider is
// not known (empty).
func (f First) In(provider v1alpha1.VPCProvider) First {
	f.MayBePort = f.MayBePort && (provider == "" || provider == v1alpha1.ProviderEC2)
	return f
}

// IsNIC reports whether a NIC with a name is the first interface.
func (f First) IsNIC(name string) bool { return name == f.Name && (f.IsPort || f.MayBePort) }

// isBranch reports whether a NIC with a name is the first interface and an EC2 branch interface.
func (f First) isBranch(name string) bool { return name == f.Name && f.MayBePort }

// linkName is stricter than the kernel (dev_valid_name).
var linkName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,14}$`)

// taken are the name of the loopback link, and other folders beside those of links in /proc/sys/net.
var taken = []string{"lo", "all", "default"}

var (
	portID     = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z-]{10,63}$`)
	objectName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)
)

// Complete returns the NICs of entries, one default NIC without any, and what is contradictory. NICs without a name get the lowest
// free one of eth0, eth1, ..., but that of the first interface only if IsPort. With most above 0 more NICs than that are an
// error.
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

// nic is the NIC of an entry, checked by itself.
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

// checkBinding checks how a virtual machine is to use the NIC.
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

// addresses are the addresses that an entry asks for, by subnet and ip or by addresses.
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

// name checks the names, and gives the other NICs theirs.
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

// checkOnce checks that no two NICs have what only one can have.
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

// checkBranch checks the NICs of a pod whose first interface is an EC2 branch interface. The node routes to that one, so that
// it has the pod's default route.
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
