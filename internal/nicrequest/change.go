package nicrequest

import (
	"reflect"
	"slices"
)

// CheckVPCChange finds whether an edit of a pod moves it to another VPC.
func CheckVPCChange(before, after string) Errors {
	var errs Errors
	if before != after {
		errs.add(fieldVPC, "cannot be changed, was %q: make the pod anew", before)
	}
	return errs
}

// CheckChange finds what an edit of a pod's NICs may not do: NICs may be added and
// removed, but for the first interface and the one with the pod's default route, and none
// may become another. A first interface that comes from elsewhere is not replaced by a NIC.
func CheckChange(before, after []NIC, first First) Errors {
	var errs Errors
	for _, old := range before {
		i := slices.IndexFunc(after, func(n NIC) bool { return n.Name == old.Name })
		if i < 0 {
			if first.IsNIC(old.Name) {
				errs.add(fieldNICs, "lacks %s, the pod's first interface, which cannot be removed", old.Name)
			} else if old.DefaultRoute {
				errs.add(fieldNICs, "lacks %s, which has the pod's default route and cannot be removed while the pod runs", old.Name)
			}
			continue
		}
		now := after[i]
		old.Index = now.Index
		if !reflect.DeepEqual(old, now) {
			errs.add(field(now.Index, ""), "%s cannot be changed while the pod has it: remove it, and add one of another name", now.Name)
		}
	}
	for _, n := range after {
		if slices.ContainsFunc(before, func(o NIC) bool { return o.Name == n.Name }) {
			continue
		}
		if first.isBranch(n.Name) && !first.IsPort {
			errs.add(field(n.Index, "name"), "%s is the name of the pod's first interface, which stays what it was when the pod came: make the pod anew", n.Name)
		}
		if n.DefaultRoute {
			errs.add(field(n.Index, "defaultRoute"), "is true of %s, which is added: the default route of a pod stays where it was when the pod came; leave it out, or make the pod anew", n.Name)
		}
	}
	return errs
}
