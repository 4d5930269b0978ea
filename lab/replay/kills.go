package replay

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// Kills are the failpoints that a verb of the node tool passes: once before it comes to the pods, for each pod, and once
// after them.
type Kills struct{ Before, OfPods, After []string }

// CoilKills are those of a migration from Coil v2, by verb.
var CoilKills = map[string]Kills{
	"apply": {OfPods: []string{"adopt.record.after", "adopt.link.after"}},
	"rollback": {OfPods: []string{
		"coil.tunnels.after", "coil.prepared.after", "giveback.record.after", "giveback.routes.after", "giveback.rules.after", "giveback.rename.after",
		"coil.inside.after", "giveback.clean.after",
	}},
	"apply --finish": {
		Before: []string{"coil.rule.after"},
		OfPods: []string{"coil.settle.after", "adopt.rules.after", "adopt.routes.after", "coil.egress.after", "coil.tidy.after", "coil.addresses.after"},
		After:  []string{"coil.exports.after"},
	},
}

// All returns the failpoints in their order.
func (k Kills) All() []string { return slices.Concat(k.Before, k.OfPods, k.After) }

// Draw returns a kill at a random failpoint, for one of the first pods.
func (k Kills) Draw(r *rand.Rand, pods int) string {
	all := k.All()
	point := all[r.IntN(len(all))]
	if slices.Contains(k.OfPods, point) {
		return fmt.Sprintf("%s=kill@%d", point, 1+r.IntN(pods))
	}
	return point + "=kill"
}
