package providers

import (
	"context"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
)

// away is an API server that does not answer.
type away struct{ client.Reader }

func (away) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return apierrors.NewServiceUnavailable("the API server is away")
}

// A Secret that cannot be read for a moment is told, and closes no VPC that is open.
func TestSecretThatIsNotRead(t *testing.T) {
	c := &Controller{
		o: Options{Clock: clock.Real{}, Interval: time.Minute}, states: map[string]*state{},
		secrets: &secrets{namespace: namespace, reader: away{}, byVPC: map[string]use{}, follow: map[string]context.CancelFunc{}},
	}
	v := &v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{Name: "blue"}, Spec: v1alpha1.VPCSpec{
		Credentials: &v1alpha1.VPCCredentials{Type: v1alpha1.CredentialsPassword, SecretName: "neutron"},
	}}
	for _, open := range []bool{true, false} {
		s := &state{open: open}
		c.look(t.Context(), v, s, 1)
		if s.open != open || s.why == nil || s.why.reason != ReasonSecretUnreadable || !s.next.After(time.Now()) {
			t.Errorf("was open %v: is open %v, because of %+v, next look %v", open, s.open, s.why, s.next)
		}
	}
}
