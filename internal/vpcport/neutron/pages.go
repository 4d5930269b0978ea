package neutron

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"strconv"

	"github.com/berthnet/berth/internal/vpcport/rest"
)

// Bounds of a listing: the items of a page, and of all pages. Neutron may have smaller pages
// (pagination_max_limit).
const (
	pageSize = 500
	maxItems = 200_000
)

// pages lists a collection page by page. It requests the next page by the last item, not by the link in
// the reply: the link would send the token to its host, which may be an internal name.
func pages[T any](ctx context.Context, p *Provider, collection string, query url.Values, id func(T) string) ([]T, error) {
	r := request{method: http.MethodGet, path: collection, query: maps.Clone(query)}
	r.query.Set("limit", strconv.Itoa(pageSize))
	r.query.Set("sort_key", "id")
	r.query.Set("sort_dir", "asc")
	var out []T
	seen := map[string]bool{}
	for {
		var reply map[string]json.RawMessage
		if err := p.call(ctx, r, &reply); err != nil {
			return nil, err
		}
		var items []T
		var links []struct {
			Rel string `json:"rel"`
		}
		if raw, ok := reply[collection]; !ok || json.Unmarshal(raw, &items) != nil {
			return nil, rest.BadReply(r.op(), "a page without %s", collection)
		}
		if raw, ok := reply[collection+"_links"]; ok && json.Unmarshal(raw, &links) != nil {
			return nil, rest.BadReply(r.op(), "a page with invalid links")
		}
		news := 0
		for _, item := range items {
			if !seen[id(item)] {
				seen[id(item)] = true
				out = append(out, item)
				news++
			}
		}
		more := false
		for _, l := range links {
			more = more || l.Rel == "next"
		}
		switch {
		case !more || len(items) == 0:
			return out, nil
		case news == 0:
			return nil, rest.BadReply(r.op(), "the same page again")
		case len(out) > maxItems:
			return nil, rest.BadReply(r.op(), "more than %d %s", maxItems, collection)
		}
		r.query.Set("marker", id(items[len(items)-1]))
	}
}
