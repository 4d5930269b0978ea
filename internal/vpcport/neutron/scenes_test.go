package neutron_test

import (
	"testing"

	"github.com/berthnet/berth/lab/cloud/neutronfake"
	"github.com/berthnet/berth/test/harness/neutronscenes"
)

// Every request that the provider makes, with every answer that there is, goes as it
// should with the lab's Neutron. TestLabAnswersAsNeutron of test/e2e/neutron compares the
// answers with those of a real one.
func TestScenes(t *testing.T) {
	url, s := neutronscenes.OfLab(t, neutronfake.Host{})
	if n := len(neutronscenes.Play(t, url, s)); n < 40 {
		t.Errorf("%d exchanges", n)
	}
}
