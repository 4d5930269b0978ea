package eni

import (
	"testing"

	"github.com/spf13/pflag"

	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/ec2/cloud"
)

// An ENI of Cilium is adopted if Cilium is chosen and created it for the instance that has it.
func TestCiliumENIs(t *testing.T) {
	managed := map[string]string{"io.cilium/cilium-managed": "true", "io.cilium/cluster-name": "prod"}
	on := func(instance string) *cloud.Attachment {
		return &cloud.Attachment{InstanceID: instance, DeviceIndex: 1, Status: "attached"}
	}
	for name, tt := range map[string]struct {
		e    cloud.ENI
		want bool
	}{
		"Cilium":                                {cloud.ENI{Description: "Cilium-CNI (i-1)", Tags: managed, Attachment: on("i-1")}, true},
		"Cilium without garbage collection":     {cloud.ENI{Description: "Cilium-CNI (i-1)", Attachment: on("i-1")}, true},
		"Cilium, detached":                      {cloud.ENI{Description: "Cilium-CNI (i-1)", Tags: managed}, true},
		"Cilium, detached, without the tag":     {cloud.ENI{Description: "Cilium-CNI (i-1)"}, false},
		"Cilium, moved":                         {cloud.ENI{Description: "Cilium-CNI (i-1)", Tags: managed, Attachment: on("i-2")}, false},
		"Cilium's tags alone":                   {cloud.ENI{Description: "database", Tags: managed, Attachment: on("i-1")}, false},
		"Cilium's description without instance": {cloud.ENI{Description: "Cilium-CNI ()", Tags: managed}, false},
		"unmanaged":                             {cloud.ENI{Description: "Cilium-CNI (i-1)", Tags: map[string]string{TagUnmanaged: "true"}, Attachment: on("i-1")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if f := factsOf(tt.e, "test", Adoptable()...); f.ours() != tt.want {
				t.Errorf("ours() = %t, want %t", f.ours(), tt.want)
			}
			if f := factsOf(tt.e, "test"); f.ours() {
				t.Error("it is adopted although nobody said so")
			}
		})
	}
}

// The settings of both programs accept every system whose ENIs can be adopted.
func TestAdoptableSettings(t *testing.T) {
	for _, name := range Adoptable() {
		env := []string{"BERTH_ADOPT_ENIS=" + name, "BERTH_NODE_NAME=a"}
		if c, err := config.NewLoader(pflag.NewFlagSet("", pflag.ContinueOnError)).Load(env); err != nil || len(c.AdoptENIs) != 1 {
			t.Errorf("berthd with adopt-enis=%s: %v, %v", name, c.AdoptENIs, err)
		}
		if c, err := config.NewOperatorLoader(pflag.NewFlagSet("", pflag.ContinueOnError)).Load(env); err != nil || len(c.AdoptENIs) != 1 {
			t.Errorf("berth-operator with adopt-enis=%s: %v, %v", name, c.AdoptENIs, err)
		}
	}
}
