package eni

import (
	"context"
	"testing"

	"github.com/berthnet/berth/internal/cloud"
)

// counting is a cloud whose count of free addresses is answered by the test.
type counting struct {
	cloud.API
	answer func() []cloud.Subnet
}

func (c counting) Subnets(context.Context, cloud.SubnetFilter) ([]cloud.Subnet, error) {
	return c.answer(), nil
}

// Whatever happens between a question and its answer is newer than the answer.
func TestOlderCountOfFreeAddresses(t *testing.T) {
	five := []cloud.Subnet{{ID: "s1", Free: 5}}
	for _, c := range []struct {
		name   string
		during func(t *testing.T, b *SubnetBook)
		answer []cloud.Subnet // to the older question
		want   int
	}{
		{"nothing", func(*testing.T, *SubnetBook) {}, five, 5},
		{"a newer answer", func(t *testing.T, b *SubnetBook) { refresh(t, b, 2, []cloud.Subnet{{ID: "s1", Free: 3}}) }, five, 3},
		{"a newer answer has a subnet that the older has not", func(t *testing.T, b *SubnetBook) { refresh(t, b, 2, five) }, nil, 5},
		{"a refusal", func(_ *testing.T, b *SubnetBook) { b.refused("s1", 2, unix(2)) }, five, 1},
		{"addresses were taken", func(_ *testing.T, b *SubnetBook) { b.reserve("s1", 4).end(4) }, five, 1},
		{"addresses were asked for in vain", func(_ *testing.T, b *SubnetBook) { b.reserve("s1", 4).end(0) }, five, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := NewSubnetBook(nil)
			refresh(t, b, 0, five)
			b.api = counting{answer: func() []cloud.Subnet {
				c.during(t, b)
				return c.answer
			}}
			if err := b.Refresh(t.Context(), cloud.SubnetFilter{}, unix(1)); err != nil {
				t.Fatal(err)
			}
			if got := b.Free(); len(got) != 1 || got[0].Free != c.want {
				t.Errorf("free: %+v, want %d", got, c.want)
			}
			refresh(t, b, 3, []cloud.Subnet{{ID: "s1", Free: 7}})
			if got := b.Free()[0].Free; got != 7 {
				t.Errorf("a count asked for later: %d, want 7", got)
			}
		})
	}
}

func refresh(t *testing.T, b *SubnetBook, asked int, answer []cloud.Subnet) {
	t.Helper()
	b.api = counting{answer: func() []cloud.Subnet { return answer }}
	if err := b.Refresh(t.Context(), cloud.SubnetFilter{}, unix(asked)); err != nil {
		t.Fatal(err)
	}
}
