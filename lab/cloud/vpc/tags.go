package vpc

import (
	"maps"
	"strings"
	"unicode/utf8"
)

// Limits of tags (EC2 User Guide, "Tag restrictions"), and of the resources in a call (EC2 API Reference,
// CreateTags).
const (
	maxTagged   = 1000
	maxTags     = 50
	maxTagKey   = 128
	maxTagValue = 256
)

// checkTags validates tags that are added to a resource.
func checkTags(has, add Tags) error {
	n := len(has)
	for k, v := range add {
		switch {
		case k == "" || utf8.RuneCountInString(k) > maxTagKey:
			return invalid("Tag key exceeds the maximum length of %d characters or is empty", maxTagKey)
		case utf8.RuneCountInString(v) > maxTagValue:
			return invalid("Tag value exceeds the maximum length of %d characters", maxTagValue)
		case strings.HasPrefix(strings.ToLower(k), "aws:"):
			return invalid("Tag keys starting with 'aws:' are reserved for internal use")
		}
		if _, ok := has[k]; !ok {
			n++
		}
	}
	if n > maxTags {
		return Errorf("TagLimitExceeded", "The maximum number of Tags for a resource has been reached.")
	}
	return nil
}

// CreateTags adds or replaces tags of resources; all of them or none.
func (c *Cloud) CreateTags(ids []string, tags Tags) error {
	return c.retag(ids, func(has Tags) (Tags, error) {
		if err := checkTags(has, tags); err != nil {
			return nil, err
		}
		out := maps.Clone(has)
		if out == nil {
			out = Tags{}
		}
		maps.Copy(out, tags)
		return out, nil
	})
}

// DeleteTags removes each tag whose value in tags is nil or equal, or all tags if tags is empty. Missing
// tags are not an error.
func (c *Cloud) DeleteTags(ids []string, tags map[string]*string) error {
	return c.retag(ids, func(has Tags) (Tags, error) {
		out := Tags{}
		for k, v := range has {
			want, named := tags[k]
			if len(tags) == 0 || named && (want == nil || *want == v) {
				continue
			}
			out[k] = v
		}
		return out, nil
	})
}

// retag applies f to the tags of every resource, or changes nothing.
func (c *Cloud) retag(ids []string, f func(Tags) (Tags, error)) error {
	if len(ids) > maxTagged {
		return invalid("The maximum number of resources in a call is %d.", maxTagged)
	}
	return c.world.change(func() error {
		var commits []func()
		for _, id := range ids {
			has, put, err := c.store.tagged(id)
			if err != nil {
				return err
			}
			tags, err := f(has)
			if err != nil {
				return err
			}
			commits = append(commits, func() { put(tags) })
		}
		for _, commit := range commits {
			commit()
		}
		return nil
	})
}
