package virtual

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/nicrequest"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/branch"
)

// withBranches makes a node in operator mode with a trunk. Pods have a branch as their first or second
// interface, and one branch is kept warm.
func withBranches(t *testing.T) *nics {
	n := newNode(t, slices.Concat(quick, []string{"--ipam=eni-operator", "--auto-create-node-network", "--pre-allocate=1", "--trunk-eni", "--vpc-ports", "--ovsdb="})...)
	n.inVPC("m5.large")
	c := newCluster(t, n.log, slices.Concat(quickReconciler, []string{
		"--ipam=eni-operator,port", "--first-interface-is-port=false", "--branch-cooling=20s", "--listing-interval=20s", "--orphan-age=1h",
	})...)
	c.cloud = n.cloud
	one := int32(1)
	spec := v1alpha1.VPCSpec{Provider: v1alpha1.ProviderEC2, Network: cloudfake.VPC, EC2: &v1alpha1.EC2Spec{WarmBranches: &one}}
	m := withNICs(n, c, nicrequest.First{Name: nicrequest.FirstInterface, MayBePort: true}, spec, map[string]string{
		"pod-0": `[{}]`, "pod-1": `[{name: eth0}]`, "pod-2": `[{}]`, "pod-3": `[{}]`, "pod-4": `[{name: eth0}]`,
	})
	m.ports = func() (out []port) {
		for _, e := range n.cloud.State.Truth() {
			if e.Tags[eni.TagOwner] == branch.Owner && !strings.HasPrefix(e.Tags[eni.TagNIC], warmDevice) {
				out = append(out, port{e.ID, e.Tags[eni.TagNIC], e.Primary})
			}
		}
		return out
	}
	return m
}

// warmDevice is the prefix of the devices of warm branches.
var warmDevice = vpcport.Device(clusterName, "warm/")

// warm checks the number of warm branches.
func (m *nics) warm(want int) func() error {
	return func() error {
		var have []string
		for _, e := range m.cloud.State.Truth() {
			if strings.HasPrefix(e.Tags[eni.TagNIC], warmDevice) {
				have = append(have, e.ID)
			}
		}
		if len(have) != want {
			return fmt.Errorf("the warm branches are %v, want %d", have, want)
		}
		return nil
	}
}

func TestHaltsWithWarmBranches(t *testing.T) {
	eachCrash(t, warmOperator, func(t *testing.T, at crash) {
		m := withBranches(t)
		m.c.start()
		m.start()
		atOnce := strings.HasPrefix(at.failpoint, "operator.warm.make.")
		if atOnce {
			m.c.haltAt(at)
		}
		m.pods.each(0, 3, m.pods.add)
		m.settle(m.warm(1))
		if !atOnce { // at a step with a warm branch, once the operator has it in its pool
			time.Sleep(time.Minute) //nolint:forbidigo // virtual time
			m.c.haltAt(at)
		}
		m.pods.each(0, 2, m.pods.del)
		m.pods.each(3, 5, m.pods.add)
		m.settle(m.warm(1))
		m.pods.each(2, 5, m.pods.del)
		vpc := &v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{Name: vpcName}}
		check(t, m.c.admin.Patch(t.Context(), vpc, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"ec2":{"warmBranches":0}}}`))))
		m.settle(m.warm(0))
		made := 0
		for _, call := range m.cloud.Front.Calls() {
			if call.Op == "CreateENI" && call.Err == nil {
				made++
			}
		}
		// Three cold branches and the first warm one, which pod-3 or pod-4 gets; its successor, and a
		// cold one for the other pod. In addition the trunk, an ENI with addresses, and the orphan of
		// inVPC.
		if made != 6+3 {
			t.Errorf("%d ENIs were made, want 6 branches and 3 others", made)
		}
		for _, wrong := range m.plugs.Clashes() {
			t.Error(wrong)
		}
		m.close()
		m.c.close()
		m.c.wantHalt(at)
	})
}
