package neutronfake

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
)

// filters are the supported filters of each collection. Neutron has more.
var filters = map[string][]string{
	"ports":    {"id", "name", "network_id", "project_id", "tenant_id", "device_id", "device_owner", "mac_address", "status"},
	"networks": {"id", "name", "project_id", "tenant_id"},
	"subnets":  {"id", "name", "network_id"},
}

// page holds the pagination parameters.
type page struct {
	limit  int // 0: no pagination
	marker string
}

// list filters a collection, and returns a page of it, ordered by ID, with the requested fields.
func (a *api) list(r *http.Request, collection string, all []map[string]any) reply {
	query := r.URL.Query()
	p, err := a.page(query)
	if err != nil {
		return err.reply()
	}
	for name := range query {
		if slices.Contains([]string{"fields", "limit", "marker", "sort_key", "sort_dir", "page_reverse"}, name) {
			continue
		}
		if !slices.Contains(filters[collection], name) {
			return badRequest("['%s'] is invalid attribute for filtering", name).reply()
		}
		want := slices.DeleteFunc(query[name], func(v string) bool { return v == "" }) // as Neutron does
		if len(want) > 0 {
			all = slices.DeleteFunc(all, func(o map[string]any) bool { return !slices.Contains(want, fmt.Sprint(o[name])) })
		}
	}
	slices.SortFunc(all, func(a, b map[string]any) int { return cmp.Compare(id(a), id(b)) })
	out := map[string]any{}
	if p.limit > 0 {
		if all, err = a.after(collection, all, p.marker); err != nil {
			return err.reply()
		}
		all = all[:min(len(all), p.limit)]
		if len(all) == p.limit && len(all) > 0 {
			out[collection+"_links"] = []any{map[string]any{"rel": "next", "href": nextPage(r, id(all[len(all)-1]))}}
		}
	}
	items := []map[string]any{}
	for _, o := range all {
		items = append(items, fields(o, query["fields"]))
	}
	out[collection] = items
	return jsonReply(200, out)
}

func id(o map[string]any) string { return fmt.Sprint(o["id"]) }

func (a *api) page(query url.Values) (page, *refusal) {
	p := page{marker: query.Get("marker")}
	if s := query.Get("limit"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 {
			return p, refuse(400, "BadRequest", "Bad limit request: Limit must be an integer 0 or greater and not '%s'.", s)
		}
		p.limit = n
	}
	if a.options.MaxPage > 0 && (p.limit == 0 || p.limit > a.options.MaxPage) {
		p.limit = a.options.MaxPage
	}
	return p, nil
}

// after returns the items after a marker, which must exist.
func (a *api) after(collection string, all []map[string]any, marker string) ([]map[string]any, *refusal) {
	if marker == "" {
		return all, nil
	}
	if _, ok := a.ports.byID[marker]; collection == "ports" && !ok {
		return nil, refuse(404, "PortNotFound", "Port %s could not be found.", marker)
	}
	return slices.DeleteFunc(all, func(o map[string]any) bool { return id(o) <= marker }), nil
}

func nextPage(r *http.Request, marker string) string {
	query := r.URL.Query()
	query.Set("marker", marker)
	return "http://" + r.Host + r.URL.Path + "?" + query.Encode()
}

func fields(o map[string]any, want []string) map[string]any {
	if len(want) == 0 {
		return o
	}
	out := map[string]any{}
	for _, name := range want {
		if v, ok := o[name]; ok {
			out[name] = v
		}
	}
	return out
}
