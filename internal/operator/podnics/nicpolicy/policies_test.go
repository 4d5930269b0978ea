package nicpolicy

import (
	"context"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/nicrequest"
)

// having has so many NICPolicies in each namespace, and counts how often it is asked.
type having struct {
	client.Reader
	policies int
	asked    *int
}

func (h having) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	*h.asked++
	list.(*v1alpha1.NICPolicyList).Items = make([]v1alpha1.NICPolicy, h.policies)
	return nil
}

// decoding reads JSON into the list that it is given, as clients of the API server do.
type decoding struct {
	client.Reader
	body string
}

func (d decoding) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	return json.Unmarshal([]byte(d.body), list)
}

// A policy of the API server has nothing of the one that the cache had in its place.
func TestLivePolicies(t *testing.T) {
	of := func(name, spec string) decoding {
		return decoding{body: `{"items":[{"metadata":{"name":"` + name + `"},"spec":{` + spec + `}}]}`}
	}
	p := &Policies{
		cached:  of("old", `"vpc":"a","subnet":"s","podSelector":{"matchLabels":{"app":"web"}},"serviceAccountSelector":{"matchLabels":{"team":"shop"}},"securityGroups":["g-1","g-2"]`),
		live:    of("new", `"securityGroups":["g-3"]`),
		foreign: &foreign{known: true},
	}
	got, err := p.Of(t.Context(), "shop", true)
	if want := []nicrequest.Policy{{Kind: nicrequest.KindNICPolicy, Name: "new", SecurityGroups: []string{"g-3"}}}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

// Pods of a namespace with too many policies are refused, and the API server is not asked for all of them.
func TestTooManyPolicies(t *testing.T) {
	for name, tt := range map[string]struct {
		cached, live int
		asks         int
		refused      string
	}{
		"few":                     {1, 2, 1, ""},
		"the most":                {most, most, 1, ""},
		"one more":                {most + 1, most + 1, 0, "namespace shop has 101 NICPolicies, expected 100 at most: delete some"},
		"one more that is so new": {most, most + 1, 1, "namespace shop has 101 NICPolicies"},
	} {
		cached, live := 0, 0
		p := &Policies{cached: having{policies: tt.cached, asked: &cached}, live: having{policies: tt.live, asked: &live}, foreign: &foreign{known: true}}
		all, err := p.Of(t.Context(), "shop", true)
		switch {
		case live != tt.asks:
			t.Errorf("%s: the API server is asked %d times, want %d", name, live, tt.asks)
		case tt.refused == "" && (err != nil || len(all) != tt.live):
			t.Errorf("%s: %d policies, %v, want %d", name, len(all), err, tt.live)
		case tt.refused != "" && (err == nil || !strings.Contains(err.Error(), tt.refused)):
			t.Errorf("%s: %v, want %s", name, err, tt.refused)
		}
	}
}
