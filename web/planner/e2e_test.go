//go:build e2e

package planner_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"
	"github.com/google/go-cmp/cmp"

	engine "github.com/berthnet/berth/internal/planner"
	"github.com/berthnet/berth/test/harness/browser"
)

var update = flag.Bool("update", false, "write docs/pictures/planner-*.png")

var (
	narrow = browser.Options{Width: 320, Height: 800}
	dark   = browser.Options{Width: 1440, Height: 1000, Dark: true}
)

func TestPageShowsRandomSimulations(t *testing.T) {
	p := open(t, browser.Start(t), wide)
	generator := scenarios()
	for seed := range 40 {
		if checkPage(t, p, generator.Example(1000+seed)); t.Failed() {
			t.Fatalf("with seed %d", 1000+seed)
		}
	}
}

func TestErrorsAreAtTheirFields(t *testing.T) {
	p := open(t, browser.Start(t), wide)
	for _, c := range []struct {
		name, yaml string
		fields     map[string]string // the messages of the fields
	}{
		{"kinds of values", `
subnets: [{name: a, cidr: 10.0.0.0/24}]
nodes: [{name: group.one, instanceType: m5.large, count: 2, subnets: [a]}]
alternatives: [{name: other, settings: {shrinkDelay: soon}}]`,
			map[string]string{"alternatives[0].settings.shrinkDelay": "expected a duration"}},
		{"values", `
duration: 2h
subnets: [{name: a, cidr: 10.0.0.0/8}]
nodes: [{name: group.one, instanceType: m5.large, count: 2, subnets: [a, nowhere]}]
workload: {deployments: [{name: web, replicas: -1, rollouts: [{at: 99h}]}]}
alternatives: [{name: other, counts: {group.one: 1000}}]`,
			map[string]string{
				"subnets[0].cidr": "expected an IPv4 block", "nodes[0].subnets[1]": "no subnet has this name", "workload.deployments[0].replicas": "-1",
				"workload.deployments[0].rollouts[0].at": "99h", `alternatives[0].counts["group.one"]`: "1000",
			}},
		{"of an alternative", `
subnets: [{name: a, cidr: 10.0.0.0/24}]
nodes: [{name: group.one, instanceType: m5.large, count: 2, subnets: [a]}]
alternatives: [{name: other, instanceTypes: {group.one: c9.huge}}]`,
			map[string]string{`alternatives[0].instanceTypes["group.one"]`: "c9.huge"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "scenario.yaml")
			if err := os.WriteFile(path, []byte(c.yaml), 0o600); err != nil {
				t.Fatal(err)
			}
			p.Choose("Open a scenario file", path)
			p.Await(`document.querySelector('[role=status]').textContent.startsWith('Loaded')`)
			p.Click("button", "Simulate")
			p.Await(`document.activeElement.id === 'problem'`)
			links := browser.Value[[]string](p, `[...document.querySelectorAll('.errors a')].map((link) => link.textContent)`)
			if len(links) != len(c.fields) {
				t.Errorf("the page lists errors of %q, want %d", links, len(c.fields))
			}
			for field, message := range c.fields {
				p.Click("link", field)
				p.Await(`document.activeElement.id === ` + quoted("field-"+strings.TrimSuffix(field, "[1]")))
				described := browser.Value[string](p, `(document.activeElement.getAttribute('aria-describedby') ?? '').split(' ').map((id) => document.getElementById(id)?.textContent ?? '').join(' ')`)
				if !strings.Contains(described, message) {
					t.Errorf("%s is described by %q, want %q in it", field, described, message)
				}
				if !browser.Value[bool](p, `document.activeElement.getAttribute('aria-invalid') === 'true' && document.activeElement.checkVisibility()`) {
					t.Errorf("%s is not marked as invalid, or not visible", field)
				}
			}
			p.Messages() // of the refused request
		})
	}
}

func quoted(s string) string {
	text, _ := json.Marshal(s)
	return string(text)
}

// A person without a mouse loads an example, changes a field, simulates, and reads a table.
func TestKeyboard(t *testing.T) {
	p := open(t, browser.Start(t), wide)
	simulate(p)
	browser.Value[bool](p, `(document.body.tabIndex = -1, document.body.focus(), document.body.removeAttribute('tabindex'), true)`)
	seen := []string{}
	for {
		p.Press(kb.Tab)
		at := browser.Value[struct {
			Name    string `json:"name"`
			Body    bool   `json:"body"`
			Outline bool   `json:"outline"`
			After   bool   `json:"after"`
		}](p, `(() => {
			const e = document.activeElement, style = getComputedStyle(e)
			const after = !window.before || Boolean(window.before.compareDocumentPosition(e) & Node.DOCUMENT_POSITION_FOLLOWING)
			window.before = e
			const target = e.matches('input[type=file]') ? getComputedStyle(e.parentElement) : style
			return { name: (e.id || e.className) + ' ' + e.textContent.trim().slice(0, 40), body: e === document.body, outline: target.outlineStyle !== 'none' && parseFloat(target.outlineWidth) >= 2, after }
		})()`)
		if at.Body || len(seen) > 400 {
			break
		}
		if !at.Outline {
			t.Errorf("no visible focus: %s", at.Name)
		}
		if !at.After {
			t.Errorf("the focus goes back: %s, after %s", at.Name, seen[len(seen)-1])
		}
		seen = append(seen, at.Name)
	}
	if len(seen) < 40 || len(seen) > 400 || !strings.Contains(seen[0], "Skip to the results") {
		t.Errorf("the focus passes %d elements, the first is %q", len(seen), seen[:min(2, len(seen))])
	}

	p.Press(kb.Tab) // from the page's end to its start
	p.Press(kb.Enter)
	p.Await(`location.hash === '#results-area'`)
	p.Press(kb.Tab)
	p.Await(`document.activeElement.textContent.includes('CSV')`)

	browser.Value[bool](p, `(document.getElementById('field-name').focus(), document.getElementById('field-name').select(), true)`)
	p.Press("changed")
	p.Await(`document.body.textContent.includes('The scenario has changed since')`)
	p.Press(kb.Enter) // in a field: simulates
	p.Await(`document.getElementById('results')?.textContent.trim() === 'Results of changed'`)
	browser.Value[bool](p, `(document.querySelector('.chart summary').focus(), true)`)
	p.Press(kb.Enter)
	p.Await(`document.querySelector('.chart details table')`)
	p.Press(kb.Tab)
	p.Await(`document.activeElement.getAttribute('role') === 'region'`)
}

func TestScenarioFiles(t *testing.T) {
	b := browser.Start(t)
	shipped, err := engine.Examples()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range append(slices.Clone(shipped), scenarios().Example(7)) {
		t.Run(s.Name, func(t *testing.T) {
			p := open(t, b, wide)
			load(t, p, s)
			for _, button := range []string{"Save the scenario as YAML", "Save the scenario as JSON"} {
				p.Click("button", button)
				name, content := p.Downloaded()
				got, err := engine.Parse(content)
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
				if diff := cmp.Diff(s, got); diff != "" {
					t.Errorf("%s (-opened +saved):\n%s", name, diff)
				}
			}
		})
	}
}

func TestFormsEditScenarios(t *testing.T) {
	p := open(t, browser.Start(t), wide)
	p.Click("button", "New")
	p.Click("button", "Add subnet")
	p.Await(`document.activeElement.tagName === 'SUMMARY'`)
	p.Press(kb.Tab) // to its name
	p.Press("b")
	p.Press(kb.Tab)
	p.Click("button", "Add alternative")
	p.Click("button", "Add deployment")
	p.Click("button", "Save the scenario as JSON")
	_, content := p.Downloaded()
	s, err := engine.Parse(content)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Subnets) != 2 || s.Subnets[1].Name != "b" || len(s.Alternatives) != 1 || len(s.Workload.Deployments) != 2 {
		t.Errorf("the form made %s", content)
	}
	if err := s.Check(); err != nil {
		t.Errorf("the form's new entries have mistakes: %v", err)
	}
}

func TestPictures(t *testing.T) {
	p := open(t, browser.Start(t), wide)
	simulate(p)
	p.Click("button", "PNG of ENIs, calls and pods")
	name, content := p.Downloaded()
	picture, err := png.Decode(bytes.NewReader(content))
	if err != nil || !strings.HasSuffix(name, "enis-calls-and-pods.png") {
		t.Fatalf("%s: %v", name, err)
	}
	colours := map[[3]uint32]bool{}
	for y := range picture.Bounds().Dy() {
		for x := range picture.Bounds().Dx() {
			r, g, b, _ := picture.At(x, y).RGBA()
			colours[[3]uint32{r, g, b}] = true
		}
	}
	if picture.Bounds().Dx() != 2400 || len(colours) < 50 {
		t.Errorf("%s is %v with %d colours: expected charts, 2400 wide", name, picture.Bounds(), len(colours))
	}
}

// The pictures of the documentation are those that the page is compared with.
func TestPageLooksAsDocumented(t *testing.T) {
	b := browser.Start(t)
	for name, o := range map[string]browser.Options{"wide": wide, "dark": dark, "narrow": {Width: 390, Height: 844}} {
		t.Run(name, func(t *testing.T) {
			p := openExample(t, b, "small-subnet", o)
			simulate(p)
			browser.Value[bool](p, `(document.activeElement.blur(), true)`)
			if name == "wide" {
				browser.Value[bool](p, `(scrollTo(0, 0), true)`)
			} else {
				browser.Value[bool](p, `(document.getElementById('addresses').scrollIntoView(), true)`)
			}
			data, got := p.Picture()
			path := "../../docs/pictures/planner-" + name + ".png"
			if *update {
				if err := os.WriteFile(path, data, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			stored, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if len(stored) > 200<<10 {
				t.Errorf("%s has %d bytes: expected at most 200 KiB", path, len(stored))
			}
			want, err := png.Decode(bytes.NewReader(stored))
			if err != nil {
				t.Fatal(err)
			}
			if share := browser.Difference(got, want); share > 0.02 {
				now := filepath.Join(os.TempDir(), "planner-"+name+".png")
				_ = os.WriteFile(now, data, 0o600)
				t.Errorf("%.1f %% of the page differ from %s; now it looks like %s (-update stores it)", share*100, path, now)
			}
		})
	}
}

func TestPageIsAccessible(t *testing.T) {
	b := browser.Start(t)
	for name, o := range map[string]browser.Options{
		"light and wide": wide, "dark and wide": dark, "light and narrow": narrow, "dark and narrow": {Width: 320, Height: 800, Dark: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := open(t, b, o)
			check := func(state string) {
				t.Helper()
				for _, v := range p.Violations(axe) {
					t.Errorf("%s: %s", state, v)
				}
				if width := browser.Value[int](p, `document.documentElement.scrollWidth`); width > o.Width {
					t.Errorf("%s: the page is %d wide in a window of %d", state, width, o.Width)
				}
			}
			check("without results")
			simulate(p)
			browser.Value[bool](p, `document.querySelectorAll('details').forEach((details) => { details.open = true }) ?? true`)
			p.Await(`document.querySelectorAll('.chart table').length === document.querySelectorAll('.chart details').length`)
			check("with results, all parts open")
			browser.Value[bool](p, `(document.getElementById('field-nodes[0].instanceType').focus(), document.activeElement.select(), true)`)
			p.Press("c9.huge")
			p.Click("button", "Simulate")
			p.Await(`document.activeElement.id === 'problem'`)
			p.Messages() // of the refused request
			check("with errors")
		})
	}
}

func TestThemesAndMotion(t *testing.T) {
	b := browser.Start(t)
	p := open(t, b, browser.Options{Width: 1440, Height: 1000, Dark: true, ReducedMotion: true})
	background := func() string {
		return browser.Value[string](p, `getComputedStyle(document.documentElement).backgroundColor`)
	}
	system := background()
	p.Click("button", "System theme")
	p.Await(`document.documentElement.dataset.theme === 'light'`)
	light := background()
	p.Click("button", "Light theme")
	p.Await(`document.documentElement.dataset.theme === 'dark'`)
	if dark := background(); system != dark || light == dark {
		t.Errorf("backgrounds: %s by the system, %s light, %s dark", system, light, dark)
	}
	if moving := browser.Value[bool](p, `[...document.querySelectorAll('*')].some((e) => parseFloat(getComputedStyle(e, '::before').transitionDuration) > 0 && getComputedStyle(e, '::before').transitionProperty !== 'none')`); moving {
		t.Error("parts of the page move although the person asked for none that do")
	}
}
