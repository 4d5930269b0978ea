package providers

import (
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/aws"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/branch"
	"github.com/berthnet/berth/lab/cloud/endpoints"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/test/harness"
)

// A VPC of EC2 goes once its warm pool is deleted, and not before; the ports of another object's
// pool in the same VPC stay.
func TestWarmPoolGoesBeforeItsVPC(t *testing.T) {
	lab, err := endpoints.Serve(spec.Default())
	harness.OK(t, err)
	t.Cleanup(lab.Close)
	t.Setenv("AWS_ACCESS_KEY_ID", lab.Credentials().AccessKeyID)
	t.Setenv("AWS_SECRET_ACCESS_KEY", lab.Credentials().SecretAccessKey)
	signed, err := aws.New(t.Context(), aws.Options{Region: lab.Cloud.Region(), EC2Endpoint: lab.EC2URL})
	harness.OK(t, err)
	amazon := pace.Cloud(signed, pace.Options{})
	b := newBed(t, Options{EC2: &EC2{Cloud: amazon, Cluster: "test", Settle: time.Second}})
	books := lab.Snapshot()
	v := &v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{Name: "e"}, Spec: v1alpha1.VPCSpec{Provider: v1alpha1.ProviderEC2, Network: books.VPCs[0].ID}}
	harness.OK(t, b.client.Create(t.Context(), v))
	b.ready("e")
	made := func(uid string) string {
		e, err := amazon.CreateENI(t.Context(), cloud.CreateENI{SubnetID: books.Subnets[0].ID, Tags: map[string]string{
			eni.TagCluster: "test", eni.TagOwner: branch.Owner, eni.TagNIC: vpcport.WarmDevice("test", uid, "1"),
		}})
		harness.OK(t, err)
		return e.ID
	}
	mine, other := made(string(v.UID)), made("other")
	harness.Eventually(t, limit, "EC2 shows both", func() error { // whose listings trail
		list, err := amazon.ENIs(t.Context(), cloud.ENIFilter{IDs: []string{mine, other}})
		if err == nil && len(list) != 2 {
			err = errors.New("not yet")
		}
		return err
	})
	harness.OK(t, b.client.Delete(t.Context(), v))
	harness.Eventually(t, limit, "the VPC goes", func() error {
		if err := b.client.Get(t.Context(), client.ObjectKeyFromObject(v), v); !apierrors.IsNotFound(err) {
			return errors.Join(errors.New("it is there"), err)
		}
		return nil
	})
	left := map[string]bool{}
	for _, e := range lab.Snapshot().ENIs {
		left[e.ID] = true
	}
	if left[mine] || !left[other] {
		t.Errorf("there are %v, want %s and not %s", left, other, mine)
	}
}
