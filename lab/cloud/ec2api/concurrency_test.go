package ec2api_test

import (
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"

	"github.com/berthnet/berth/lab/cloud/spec"
)

// The cloud stays consistent while many clients call it concurrently and requests and replies get lost.
func TestConcurrentClients(t *testing.T) {
	const clients, rounds = 8, 15
	s := instant()
	s.Throttle = "none"
	s.Faults = []spec.Fault{
		{Action: "*", Kind: "lostReply", Probability: 0.15},
		{Action: "*", Kind: "error", Code: "InternalError", Probability: 0.15},
	}
	r := newRig(t, s)
	var wg sync.WaitGroup
	for n := range clients {
		wg.Go(func() {
			c := client(r.cloud, static(r.cloud), 1)
			instance := aws.String(r.cloud.Instances.ID([]string{"node-a", "node-b"}[n%2]))
			for range rounds {
				out, err := c.CreateNetworkInterface(t.Context(), &awsec2.CreateNetworkInterfaceInput{
					SubnetId: aws.String(r.subnet([]string{"a", "b"}[n%2])), Ipv4PrefixCount: aws.Int32(1),
				})
				if err != nil {
					continue
				}
				id := out.NetworkInterface.NetworkInterfaceId
				_, _ = c.AssignPrivateIpAddresses(t.Context(), &awsec2.AssignPrivateIpAddressesInput{NetworkInterfaceId: id, SecondaryPrivateIpAddressCount: aws.Int32(5)})
				at, err := c.AttachNetworkInterface(t.Context(), &awsec2.AttachNetworkInterfaceInput{NetworkInterfaceId: id, InstanceId: instance, DeviceIndex: aws.Int32(int32(1 + n/2%2))})
				if err == nil {
					_, _ = c.DetachNetworkInterface(t.Context(), &awsec2.DetachNetworkInterfaceInput{AttachmentId: at.AttachmentId})
				}
				_, _ = c.DeleteNetworkInterface(t.Context(), &awsec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: id})
			}
		})
	}
	wg.Wait()
	if err := r.cloud.Snapshot().Check(); err != nil {
		t.Error(err)
	}
	calls := r.cloud.API.Stats()
	if got := calls["CreateNetworkInterface"]; got.Count != clients*rounds || got.LostReplies == 0 || got.Errors["InternalError"] == 0 {
		t.Errorf("CreateNetworkInterface stats = %+v, want %d calls with lost replies and InternalErrors", got, clients*rounds)
	}
	logged := map[string]int{}
	for _, rec := range r.cloud.API.CallLog() {
		logged[rec.Action]++
	}
	for action, n := range calls {
		if logged[action] != n.Count {
			t.Errorf("%s: log has %d calls, stats have %d", action, logged[action], n.Count)
		}
	}
}
