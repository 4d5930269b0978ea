package eni

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestInventoryRefusesWhatCannotBe(t *testing.T) {
	for _, c := range []struct{ data, word string }{
		{`{`, "inventory"},
		{`{}`, "instanceID"},
		{`{"instanceID":"i-1","enis":[{"id":"a"},{"id":"a"}]}`, "each once"},
		{`{"instanceID":"i-1","enis":[{"id":"a","deviceIndex":-1}]}`, "deviceIndex -1"},
		{`{"instanceID":"i-1","enis":[{"id":"a","mac":"zz"}]}`, "mac"},
		{`{"instanceID":"i-1","enis":[{"id":"a","addresses":[""]}]}`, "no address"},
		{`{"instanceID":"i-1","enis":[{"id":"a","addresses":["10.0.0.1"]},{"id":"b","addresses":["10.0.0.1"]}]}`, "is of a and of b"},
		{`{"instanceID":"i-1","enis":[{"id":"a","prefixes":["10.0.0.1/28"]}]}`, "aligned"},
		{`{"instanceID":"i-1","enis":[{"id":"a"}],"leaving":[{"eni":"a"}]}`, "leaving"},
		{`{"instanceID":"i-1","releasing":[{"eni":"a"}]}`, "releasing"},
	} {
		if _, err := DecodeInventory([]byte(c.data)); err == nil || !strings.Contains(err.Error(), c.word) {
			t.Errorf("%s: error %v does not say %q", c.data, err, c.word)
		}
	}
}

// Whatever is accepted survives being written and read again, and can be used.
func FuzzDecodeInventory(f *testing.F) {
	f.Add([]byte(`{"instanceID":"i-1","enis":[{"id":"a","mac":"02:00:00:00:00:01","serves":true,"addresses":["10.0.0.1"],"prefixes":["10.0.0.16/28"]}],"leaving":[{"eni":"b","since":"2026-01-01T00:00:00Z"}],"releasing":[{"prefix":"10.0.0.1/32","eni":"a","since":"2026-01-01T00:00:00Z"}]}`))
	f.Add([]byte(`{"instanceID":"i-1","enis":[{"id":"a","ipv6":["2001:db8::1"],"ipv6Prefixes":["2001:db8::/80"]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		inv, err := DecodeInventory(data)
		if err != nil {
			return
		}
		out, err := json.Marshal(inv)
		if err != nil {
			t.Fatalf("accepted %s, cannot write it: %v", data, err)
		}
		again, err := DecodeInventory(out)
		if err != nil {
			t.Fatalf("wrote %s, cannot read it: %v", out, err)
		}
		if len(again.ENIs) != len(inv.ENIs) {
			t.Fatalf("%d ENIs became %d", len(inv.ENIs), len(again.ENIs))
		}
		for i := range inv.ENIs {
			if !inv.ENIs[i].Equal(again.ENIs[i]) {
				t.Fatalf("%+v became %+v", inv.ENIs[i], again.ENIs[i])
			}
		}
	})
}
