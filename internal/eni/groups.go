package eni

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/cloud"
)

// groupsAge is how long security groups found by tags are remembered.
const groupsAge = time.Minute

// GroupBook finds security groups by tags and remembers them for a minute. One
// is shared by all reconcilers of a process.
type GroupBook struct {
	api    cloud.API
	clock  clock.Clock
	asking singleflight.Group // calls under way, by key

	mu  sync.Mutex // guards all; memory only
	all map[string]groupEntry
}

type groupEntry struct {
	ids []string
	at  time.Time
}

// NewGroupBook returns an empty book.
func NewGroupBook(api cloud.API, c clock.Clock) *GroupBook {
	return &GroupBook{api: api, clock: c, all: map[string]groupEntry{}}
}

// Find lists the IDs of a VPC's security groups that carry all the tags. None
// is an error of class Gone that names the tags.
func (b *GroupBook) Find(ctx context.Context, vpc string, tags map[string]string) ([]string, error) {
	key := vpc + " " + tagText(tags)
	b.mu.Lock()
	e, ok := b.all[key]
	b.mu.Unlock()
	if ok && b.clock.Now().Sub(e.at) < groupsAge {
		return e.ids, nil
	}
	got, err, _ := b.asking.Do(key, func() (any, error) { return b.ask(context.WithoutCancel(ctx), key, vpc, tags) })
	if err != nil {
		return nil, err
	}
	return got.([]string), nil
}

func (b *GroupBook) ask(ctx context.Context, key, vpc string, tags map[string]string) ([]string, error) {
	now := b.clock.Now()
	ids, err := b.api.SecurityGroups(ctx, vpc, tags)
	if err != nil {
		return nil, fmt.Errorf("find the security groups with tags %s: %w", tagText(tags), err)
	}
	if len(ids) == 0 {
		return nil, &cloud.Error{Class: cloud.Gone, Op: "DescribeSecurityGroups", Message: fmt.Sprintf("no security group of %s has the tags %s", vpc, tagText(tags))}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.all, func(_ string, e groupEntry) bool { return now.Sub(e.at) >= groupsAge })
	b.all[key] = groupEntry{ids, now}
	return ids, nil
}

// tagText reads "a=1,b=2".
func tagText(tags map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(tags)) {
		out = append(out, k+"="+tags[k])
	}
	return strings.Join(out, ",")
}
