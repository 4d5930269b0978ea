package webhook_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/nicrequest"
	"github.com/berthnet/berth/internal/operator/podnics"
	"github.com/berthnet/berth/internal/operator/podnics/webhook"
	"github.com/berthnet/berth/internal/operator/watched"
	"github.com/berthnet/berth/test/harness"
)

// addresses gives the machine some, and returns them.
func addresses(t *testing.T, n int) (list []string) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	harness.OK(t, err)
	next := netip.MustParseAddr("198.51.100.1")
	for range n {
		a, err := netlink.ParseAddr(next.String() + "/32")
		harness.OK(t, err)
		harness.OK(t, netlink.AddrAdd(lo, a))
		t.Cleanup(func() { harness.OK(t, netlink.AddrDel(lo, a)) })
		list, next = append(list, next.String()), next.Next()
	}
	return list
}

// Pods that hold requests open whose bodies never end do not keep a pod from being made.
func TestPodsAreMadeWhileRequestsAreHeld(t *testing.T) {
	harness.KubeClean(t)
	makeVPC(t, "vpc-1")
	all, admin := addresses(t, 18), harness.KubeClient(t)
	servers := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"}, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}}}, // it comes from the machine's own
	}
	harness.OK(t, admin.Create(t.Context(), servers))
	t.Cleanup(func() { harness.OK(t, admin.Delete(context.Background(), servers)) })
	for name, clients := range map[string][]netip.Prefix{"of pods": nil, "of those who may ask": {netip.MustParsePrefix("198.51.100.0/24")}} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", all[0]+":0")
			harness.OK(t, err)
			o := webhook.Options{Listener: l, Clients: clients, First: nicrequest.First{Name: "eth0", IsPort: true}}
			end, metrics := serveFor(t, deploy.InMode(deploy.PortMode, "test"), o, []*watched.Kind{watched.Namespaces, podnics.VPCs})
			defer end()
			judged := func() error {
				return refused(admin.Create(t.Context(), inVPC("no list"), client.DryRunAll), "expected a list of NICs")
			}
			harness.Eventually(t, limit, "the webhook is asked", judged)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			for _, from := range all[1:] {
				for range 8 {
					go hold(ctx, from, l.Addr().String())
				}
			}
			harness.Eventually(t, limit, "the attack is under way", func() error {
				if n := value(t, metrics, "berth_operator_webhook_refused_connections_total"); clients == nil && n < 17*8 {
					return fmt.Errorf("%v connections were refused", n)
				}
				return nil
			})
			for i := range 6 {
				if err := judged(); err != nil {
					t.Errorf("pod %d: %v", i, err)
				}
				<-time.After(200 * time.Millisecond) // while connections come again
			}
		})
	}
}

// hold has a POST without an end at an address all the time.
func hold(ctx context.Context, from, to string) {
	for ctx.Err() == nil {
		d := tls.Dialer{NetDialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}, Config: &tls.Config{InsecureSkipVerify: true}}
		if c, err := d.DialContext(ctx, "tcp", to); err == nil {
			stop := context.AfterFunc(ctx, func() { _ = c.Close() })
			_, _ = io.WriteString(c, "POST /validate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
			_, _ = io.Copy(io.Discard, c) // until it is closed
			stop()
			_ = c.Close()
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}
