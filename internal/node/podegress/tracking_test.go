package podegress

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/kernel/egressgateway"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/podegress/egressfake"
)

// A gateway that has to refuse connections is reported, as long as it does, and no other pod is.
func TestGatewaysWithoutRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := egressfake.NewKernel(nil)
		var mu sync.Mutex // guards reported
		var reported []string
		c := clients(t, newObserved(""), func(cfg *Config) {
			cfg.Kernel, cfg.Full = k, func(rec attachment.Record, message string) {
				mu.Lock()
				defer mu.Unlock()
				reported = append(reported, rec.Pod.Name+": "+message)
			}
		})
		for i := range 3 {
			rec := record(i)
			rec.Egress = &attachment.Egress{Forward: i < 2}
			c.SetUp(rec)
			k.Track(rec.Netns.Path, egressgateway.Tracked{Count: 5, Limit: 5000, Refused: 7}) // of before
		}
		go tracker{clients: c}.run(t.Context())
		look := func(want ...string) {
			t.Helper()
			mu.Lock()
			reported = nil
			mu.Unlock()
			time.Sleep(trackingInterval * 3 / 2) //nolint:forbidigo // virtual time
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			slices.Sort(reported)
			if !slices.EqualFunc(reported, want, strings.HasPrefix) {
				t.Errorf("reported %q, want %q", reported, want)
			}
		}
		look()
		for i := range 3 {
			k.Track(record(i).Netns.Path, egressgateway.Tracked{Count: 5000, Limit: 5000, Refused: 9 + uint64(i)})
		}
		look(record(0).Pod.Name+": the connection table of this gateway is full: it tracks 5000 of 5000 connections, and dropped 2 packets",
			record(1).Pod.Name+": the connection table of this gateway is full: it tracks 5000 of 5000 connections, and dropped 3 packets")
		look()
		k.Fail(errors.New("no such namespace"))
		look()
		k.Fail(nil)
		k.Track(record(0).Netns.Path, egressgateway.Tracked{Refused: 1}) // another namespace
		look()
		c.Ended(record(1))
		k.Track(record(1).Netns.Path, egressgateway.Tracked{Refused: 100})
		look()
	})
}
