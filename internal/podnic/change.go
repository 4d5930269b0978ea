package podnic

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
// removed, but for the first interface, and none may become another.
func CheckChange(before, after []NIC, first First) Errors {
	var errs Errors
	for _, old := range before {
		i := slices.IndexFunc(after, func(n NIC) bool { return n.Name == old.Name })
		if i < 0 {
			if first.IsPort && old.Name == first.Name {
				errs.add(fieldNICs, "lacks %s, the pod's first interface, which cannot be removed", old.Name)
			}
			continue
		}
		now := after[i]
		old.Index = now.Index
		if !reflect.DeepEqual(old, now) {
			errs.add(field(now.Index, ""), "%s cannot be changed while the pod has it: remove it, and add one of another name", now.Name)
		}
	}
	return errs
}
