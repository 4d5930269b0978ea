//go:build e2e

// Package docs_test looks at the built documentation (make docs) in a browser.
package docs_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"

	"github.com/berthnet/berth/test/harness/browser"
)

// axe is the source of axe-core, which checks pages for accessibility.
const axe = "../node_modules/axe-core/axe.min.js"

const built = "../../dist/docs"

var (
	wide   = browser.Options{Width: 1440, Height: 1000}
	narrow = browser.Options{Width: 375, Height: 800}
)

// serve serves a built site below a path of its own, since the site must not depend on its path. It returns the address of
// the newest version.
func serve(t *testing.T, dir string) (url string, versions []string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "versions.json"))
	if err != nil {
		t.Fatalf("the documentation is not built (make docs): %v", err)
	}
	if err := json.Unmarshal(data, &versions); err != nil {
		t.Fatalf("versions.json: %v", err)
	}
	server := httptest.NewServer(http.StripPrefix("/below/a/path", http.FileServer(http.Dir(dir))))
	t.Cleanup(server.Close)
	return server.URL + "/below/a/path/" + versions[0] + "/", versions
}

// open opens a page and waits until its scripts run.
func open(t *testing.T, b *browser.Browser, url string, o browser.Options) *browser.Page {
	t.Helper()
	p := b.Open(t, url, o)
	p.Await(`document.querySelector('#app')?.__vue_app__ && document.querySelector('h1')`)
	return p
}

// noViolations checks a page with axe.
func noViolations(t *testing.T, p *browser.Page) {
	t.Helper()
	for _, v := range p.Violations(axe) {
		t.Error(v)
	}
}

func TestSite(t *testing.T) {
	url, _ := serve(t, built)
	b := browser.Start(t)
	t.Run("search", func(t *testing.T) {
		for query, page := range map[string]string{
			"SubnetFull":         "troubleshoot/",
			"nodelocal dnscache": "start/compatibility.html",
			"roll back upgrade":  "guides/upgrade.html",
		} {
			p := open(t, b, url, wide)
			p.Click("button", "Search")
			p.Await(`document.activeElement.matches('.search-input')`)
			p.Press(query)
			// The list follows what is typed, with a delay.
			p.Await(fmt.Sprintf(`[...document.querySelectorAll('.results a.result')].slice(0, 5).some((a) => a.href.startsWith(%q))`, url+page))
			first := browser.Value[string](p, `document.querySelector('.results a.result').href.split('#')[0]`)
			p.Press(kb.Enter)
			p.Await(fmt.Sprintf(`location.href.split('#')[0] === %q && !document.querySelector('.search-input')`, first))
		}
	})
	t.Run("dark mode", func(t *testing.T) {
		p := open(t, b, url+"start/limits.html", wide)
		const background = `getComputedStyle(document.body).backgroundColor`
		light := browser.Value[string](p, background)
		browser.Value[bool](p, `(document.querySelector('.VPNavBarAppearance .VPSwitchAppearance').click(), true)`)
		p.Await(`document.documentElement.classList.contains('dark') && ` + background + ` !== '` + light + `'`)
		noViolations(t, p)
		browser.Value[bool](p, `(location.reload(), true)`)
		p.Await(`document.querySelector('h1') && document.documentElement.classList.contains('dark')`)
	})
	t.Run("narrow screen", func(t *testing.T) {
		p := open(t, b, url+"start/which-mode.html", narrow)
		p.Await(`document.documentElement.scrollWidth <= innerWidth`)
		p.Click("button", "Menu")
		p.Await(`document.querySelector('.VPSidebar.open')`)
		p.Await(`[...document.querySelectorAll('.VPSidebar.open a')].some((a) => a.checkVisibility() && a.pathname.endsWith('/start/limits.html'))`)
		browser.Value[bool](p, `(document.querySelector('.VPSidebar.open a[href$="/start/limits.html"]').click(), true)`)
		p.Await(`location.pathname.endsWith('/start/limits.html') && document.querySelector('h1').textContent.startsWith('Limits') && !document.querySelector('.VPSidebar.open, .VPBackdrop')`)
		p.Click("button", "mobile navigation")
		p.Await(`[...document.querySelectorAll('.VPNavScreen a')].some((a) => a.checkVisibility() && a.textContent.trim() === 'Guides')`)
	})
	t.Run("accessibility", func(t *testing.T) {
		for _, page := range []string{"", "guides/plan.html", "reference/metrics.html"} {
			noViolations(t, open(t, b, url+page, wide))
		}
		noViolations(t, open(t, b, url+"start/lab.html", browser.Options{Width: wide.Width, Height: wide.Height, Dark: true}))
		noViolations(t, open(t, b, url+"troubleshoot/nodes.html", narrow))
	})
}

// choose selects a version in the list of versions.
func choose(p *browser.Page, version string) {
	p.Await(`[...document.querySelectorAll('select.versions option')].some((o) => o.value === '` + version + `')`)
	browser.Value[bool](p, `(() => {
		const list = document.querySelector('select.versions')
		list.value = '`+version+`'
		return list.dispatchEvent(new Event('change'))
	})()`)
}

// The site of a release has the release before it, by the tags of the repository, and leads from a page to that of the other
// version.
func TestVersions(t *testing.T) {
	const before, now = "v1000.0.0", "v1000.1.0" // newer than any tag
	tree, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	clone := filepath.Join(t.TempDir(), "clone")
	for _, command := range [][]string{
		{"git", "clone", "--quiet", "--shared", tree, clone},
		{"ln", "-s", tree + "/web/node_modules", clone + "/web/node_modules"},
		{"git", "-C", clone, "tag", before},
		{"git", "-C", clone, "-c", "user.name=test", "-c", "user.email=test@example.com", "commit", "--quiet", "--allow-empty", "--message=Next"},
		{clone + "/hack/docs.sh", now},
	} {
		if out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", command, err, out)
		}
	}
	site := filepath.Join(clone, "dist", "docs")
	if err := os.Remove(filepath.Join(site, before, "start", "lab.html")); err != nil { // a page that is new
		t.Fatal(err)
	}
	url, versions := serve(t, site)
	if !slices.Equal(versions, []string{now, before}) {
		t.Fatalf("versions = %q, want %q and %q", versions, now, before)
	}
	index, err := os.ReadFile(filepath.Join(site, "index.html"))
	if err != nil || !strings.Contains(string(index), "url="+now+"/") {
		t.Errorf("index.html does not lead to %s: %v\n%s", now, err, index)
	}
	b := browser.Start(t)
	for page, want := range map[string]string{"start/limits.html": "start/limits.html", "start/lab.html": ""} {
		o := wide
		if want == "" {
			o.Missing = "/" + before + "/" + page // the page looks whether the other version has it
		}
		p := open(t, b, url+page, o)
		choose(p, before)
		p.Await(`location.pathname.endsWith('/` + before + "/" + want + `') && document.querySelector('select.versions')?.value === '` + before + `'`)
		if want == "" {
			continue
		}
		if links := browser.Value[[]string](p, `[...document.querySelectorAll('main a')].map((a) => a.href).filter((a) => a.includes('/blob/') && !a.includes('/blob/`+before+`/'))`); len(links) > 0 {
			t.Errorf("links of %s to files of another version: %q", before, links)
		}
		choose(p, now)
		p.Await(`location.pathname.endsWith('/` + now + "/" + page + `')`)
	}
}
