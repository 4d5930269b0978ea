package monitoring

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// dashboard contains the parts of Grafana's format that the tests read.
type dashboard struct {
	UID        string  `json:"uid"`
	Title      string  `json:"title"`
	Schema     int     `json:"schemaVersion"`
	Panels     []panel `json:"panels"`
	Templating struct {
		List []struct {
			Name       string `json:"name"`
			Type       string `json:"type"`
			Query      any    `json:"query"`
			Definition string `json:"definition"`
			Datasource source `json:"datasource"`
		} `json:"list"`
	} `json:"templating"`
}

type source struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

type panel struct {
	ID          int                      `json:"id"`
	Type        string                   `json:"type"`
	Title       string                   `json:"title"`
	Description string                   `json:"description"`
	Datasource  source                   `json:"datasource"`
	Grid        struct{ X, Y, W, H int } `json:"gridPos"`
	FieldConfig struct {
		Defaults struct {
			Unit string `json:"unit"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
	Targets []struct {
		Ref        string `json:"refId"`
		Expr       string `json:"expr"`
		Datasource source `json:"datasource"`
	} `json:"targets"`
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	if err := json.Unmarshal([]byte(readFile(t, dashboardFile)), &d); err != nil {
		t.Fatalf("%s: %v", dashboardFile, err)
	}
	return d
}

// expressions returns the expressions of all panels and variables, with Grafana's variables
// replaced as Grafana does it.
func (d dashboard) expressions() (all []string) {
	seen := strings.NewReplacer("$__rate_interval", "5m", "$__range", "3h", "$node", ".*")
	for _, v := range d.Templating.List {
		if query, ok := strings.CutPrefix(v.Definition, "label_values("); ok {
			query, _, _ = strings.Cut(query, ", ")
			all = append(all, seen.Replace(query))
		}
	}
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			all = append(all, seen.Replace(target.Expr))
		}
	}
	return all
}

// Each panel has all that Grafana needs, a title and a description, and panels do not overlap on the grid of 24
// columns.
func TestDashboard(t *testing.T) {
	d := readDashboard(t)
	if d.UID != "berth" || d.Title == "" || d.Schema == 0 {
		t.Errorf("dashboard: uid = %q, title = %q, schemaVersion = %d", d.UID, d.Title, d.Schema)
	}
	if v := d.Templating.List; len(v) == 0 || v[0].Name != "datasource" || v[0].Type != "datasource" || v[0].Query != "prometheus" {
		t.Error("the first variable is not the data source")
	}
	variable := source{"prometheus", "${datasource}"}
	ids := map[int]bool{}
	for i, p := range d.Panels {
		if ids[p.ID] || p.ID == 0 {
			t.Errorf("%s: panel ID %d is 0 or not unique", p.Title, p.ID)
		}
		ids[p.ID] = true
		if p.Grid.W < 1 || p.Grid.H < 1 || p.Grid.X+p.Grid.W > 24 {
			t.Errorf("%s is outside of the grid: %+v", p.Title, p.Grid)
		}
		for _, q := range d.Panels[:i] {
			if p.Grid.X < q.Grid.X+q.Grid.W && q.Grid.X < p.Grid.X+p.Grid.W && p.Grid.Y < q.Grid.Y+q.Grid.H && q.Grid.Y < p.Grid.Y+p.Grid.H {
				t.Errorf("%s overlaps %s", p.Title, q.Title)
			}
		}
		if p.Type == "row" {
			continue
		}
		if !slices.Contains([]string{"timeseries", "stat", "table"}, p.Type) {
			t.Errorf("%s: type = %q, want one that every Grafana has", p.Title, p.Type)
		}
		if p.Title == "" || p.Description == "" || p.Type != "table" && p.FieldConfig.Defaults.Unit == "" {
			t.Errorf("panel %d (%s) lacks a title, a description or a unit", p.ID, p.Title)
		}
		if p.Datasource != variable || len(p.Targets) == 0 {
			t.Errorf("%s: data source = %v with %d queries, want the variable and at least one", p.Title, p.Datasource, len(p.Targets))
		}
		for _, target := range p.Targets {
			if target.Datasource != variable || target.Ref == "" || target.Expr == "" {
				t.Errorf("%s: invalid query %+v", p.Title, target)
			}
		}
	}
}
