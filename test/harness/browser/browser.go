// Package browser drives web pages in Debian's Chromium, for tests. Elements are found as assistive technology finds
// them: by role and accessible name.
package browser

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/dom"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
)

// Browser is a running Chromium.
type Browser struct{ ctx context.Context }

// Start starts Chromium, until the test ends.
func Start(t *testing.T) *Browser {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath("/usr/bin/chromium"),
		chromedp.UserDataDir(t.TempDir()),
		chromedp.NoSandbox, // tests run as root, which Chromium's own sandbox does not support
		// Pictures are alike on all machines.
		chromedp.Flag("force-color-profile", "srgb"),
		chromedp.Flag("font-render-hinting", "none"),
		chromedp.Flag("disable-lcd-text", true))
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, _ = chromedp.NewContext(ctx)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("start Chromium (hack/deps.sh browser installs it): %v", err)
	}
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil {
			t.Errorf("stop Chromium: %v", err)
		}
	})
	return &Browser{ctx: ctx}
}

// Options describe the window of a page.
type Options struct {
	Width, Height int
	Dark          bool
	ReducedMotion bool
	// Missing is a part of the URL of a file that the page may request although it does not exist.
	Missing string
}

// Page is an open page, in a profile of its own.
type Page struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex // guards what follows, which events of the browser change
	messages []string   // of the console
	foreign  []string   // URLs of requests to other servers
	files    chan file
	names    map[string]string // of downloads, by their GUID
}

type file struct{ guid string }

// Open opens a page. When the test ends, it fails if the page wrote an error to the console or sent a request to
// another server.
func (b *Browser) Open(t *testing.T, url string, o Options) *Page {
	t.Helper()
	ctx, _ := chromedp.NewContext(b.ctx, chromedp.WithNewBrowserContext())
	p := &Page{t: t, ctx: ctx, files: make(chan file, 16), names: map[string]string{}}
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil {
			t.Errorf("close the page: %v", err)
		}
		for _, message := range p.Messages() {
			if o.Missing == "" || !strings.Contains(message, "404") || !strings.Contains(message, o.Missing) {
				t.Errorf("console: %s", message)
			}
		}
		for _, url := range p.foreign {
			t.Errorf("the page sent a request to another server: %s", url)
		}
	})
	downloads := t.TempDir()
	origin := strings.Join(strings.SplitN(url, "/", 4)[:3], "/") + "/"
	p.must(chromedp.Do(ctx))
	p.must(chromedp.Listen(ctx, func(event any) { p.received(event, origin) }))
	p.must(chromedp.ListenBrowser(ctx, func(event any) { p.received(event, origin) }))
	go p.listen(chromedp.Console(ctx))
	events := true
	_, err := chromedp.CallBrowser(ctx, browser.SetDownloadBehavior, browser.SetDownloadBehaviorParams{
		Behavior: browser.SetDownloadBehaviorBehaviorAllowAndName, DownloadPath: downloads, EventsEnabled: &events,
		BrowserContextID: chromedp.FromContext(ctx).BrowserContextID,
	})
	p.must(err)
	p.names[""] = downloads
	scheme, motion := "light", "no-preference"
	if o.Dark {
		scheme = "dark"
	}
	if o.ReducedMotion {
		motion = "reduce"
	}
	_, err = chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: motion},
	}})
	p.must(err)
	p.must(chromedp.Do(ctx, chromedp.EmulateViewport(int64(o.Width), int64(o.Height)), chromedp.Navigate(url)))
	return p
}

func (p *Page) received(event any, origin string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		if u := e.Request.URL; !strings.HasPrefix(u, origin) && !strings.HasPrefix(u, "data:") && !strings.HasPrefix(u, "blob:"+origin) {
			p.foreign = append(p.foreign, u)
		}
	case *browser.EventDownloadWillBegin:
		p.names[e.GUID] = e.SuggestedFilename
	case *browser.EventDownloadProgress:
		if e.State == browser.DownloadProgressStateCompleted {
			p.files <- file{e.GUID}
		}
	}
}

func (p *Page) listen(messages func(func(chromedp.ConsoleMessage, error) bool)) {
	for m, err := range messages {
		if err != nil {
			return // the page is closed
		}
		if m.IsException() || m.Type == "error" || m.Type == "warning" {
			p.mu.Lock()
			p.messages = append(p.messages, fmt.Sprintf("%s: %s %s", m.Type, m.Text, m.URL))
			p.mu.Unlock()
		}
	}
}

// Messages returns the errors that the page wrote to the console since the last call.
func (p *Page) Messages() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	messages := p.messages
	p.messages = nil
	return messages
}

func (p *Page) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// Value evaluates a JavaScript expression. It waits for a promise.
func Value[T any](p *Page, expression string) T {
	p.t.Helper()
	v, err := evaluate[T](p, expression)
	if err != nil {
		p.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

func evaluate[T any](p *Page, expression string) (T, error) {
	return chromedp.Run(p.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// navigated is part of the error of a promise whose page was replaced by another.
const navigated = "Inspected target navigated or closed"

// Await waits until a JavaScript expression is true. If another page replaces the current one, it waits there.
func (p *Page) Await(expression string) {
	p.t.Helper()
	wait := fmt.Sprintf(`new Promise((done) => {
		const end = Date.now() + 60_000
		const look = () => (%s) ? done(true) : Date.now() > end ? done(false) : setTimeout(look, 20)
		look()
	})`, expression)
	done, err := evaluate[bool](p, wait)
	for pages := 1; err != nil && strings.Contains(err.Error(), navigated) && pages < 10; pages++ {
		done, err = evaluate[bool](p, wait)
	}
	if err != nil {
		p.t.Fatalf("%s: %v", expression, err)
	}
	if !done {
		p.t.Fatalf("not true within a minute: %s\nThe page:\n%s", expression, Value[string](p, `document.body.innerText`))
	}
}

// named finds the element with a role and an accessible name, which must be the only one.
func (p *Page) named(role, name string) chromedp.QueryOption {
	return chromedp.ByFunc(func(ctx context.Context, t *chromedp.Target, root *chromedp.Node) ([]cdp.NodeID, error) {
		found, err := cdp.Call(ctx, t, accessibility.QueryAXTree, accessibility.QueryAXTreeParams{NodeID: root.NodeID, Role: role, AccessibleName: name})
		if err != nil {
			return nil, err
		}
		var ids []cdp.BackendNodeID
		for _, node := range found.Nodes {
			if !node.Ignored {
				ids = append(ids, node.BackendDOMNodeID)
			}
		}
		if len(ids) > 1 {
			p.t.Fatalf("%d elements are a %s named %q", len(ids), role, name) // chromedp repeats a search that fails
		}
		if len(ids) == 0 {
			return nil, nil
		}
		nodes, err := cdp.Call(ctx, t, dom.PushNodesByBackendIDsToFrontend, dom.PushNodesByBackendIDsToFrontendParams{BackendNodeIDs: ids})
		return nodes.NodeIDs, err
	})
}

func (p *Page) do(what, role, name string, steps ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		p.t.Fatalf("%s the %s %q: %v\nThe page:\n%s", what, role, name, err, Value[string](p, `document.body.innerText`))
	}
}

// Click clicks an element.
func (p *Page) Click(role, name string) {
	p.t.Helper()
	// In the middle, where nothing that stays at the window's edge covers the element.
	center := chromedp.After(func(ctx context.Context, t *chromedp.Target, nodes []*chromedp.Node) error {
		_, err := cdp.Call(ctx, t, dom.ScrollIntoViewIfNeeded, dom.ScrollIntoViewIfNeededParams{NodeID: nodes[0].NodeID})
		return err
	})
	p.do("click", role, name, chromedp.Query(name, p.named(role, name), center), chromedp.Click(name, p.named(role, name)))
}

// Choose opens a file with a file field, which Chromium's accessibility tree has with the name of the chosen file.
func (p *Page) Choose(label, path string) {
	p.t.Helper()
	field := chromedp.CSS(fmt.Sprintf("input[type=file][aria-label=%q]", label))
	p.do("open a file with", "field", label, chromedp.SetUploadFiles(field, []string{path}, chromedp.NodeReady))
}

// Press types keys (package kb has those without a character).
func (p *Page) Press(keys string, options ...chromedp.KeyOption) {
	p.t.Helper()
	p.must(chromedp.Do(p.ctx, chromedp.KeyEvent(keys, options...)))
}

// Downloaded waits for the next file that the page saves. Chromium drops downloads of a page beyond ten a second, so tests
// that save many files open a page for each few.
func (p *Page) Downloaded() (name string, content []byte) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	select {
	case f := <-p.files:
		p.mu.Lock()
		name, path := p.names[f.guid], filepath.Join(p.names[""], f.guid)
		p.mu.Unlock()
		content, err := os.ReadFile(path)
		p.must(err)
		return name, content
	case <-ctx.Done():
		p.t.Fatalf("the page saved no file within %s", patience)
		return "", nil
	}
}

// Picture returns what the window shows, as PNG and decoded.
func (p *Page) Picture() ([]byte, image.Image) {
	p.t.Helper()
	data, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
	p.must(err)
	picture, err := png.Decode(bytes.NewReader(data))
	p.must(err)
	return data, picture
}

// Violations checks the page with axe-core, whose source is in a file, and returns what assistive technology or people
// with poor sight would stumble over.
func (p *Page) Violations(axe string) []string {
	p.t.Helper()
	source, err := os.ReadFile(axe)
	if err != nil {
		p.t.Fatalf("axe-core is not installed (make web does): %v", err)
	}
	Value[bool](p, string(source)+"\n;true")
	report := Value[string](p, `axe.run(document, { resultTypes: ['violations'] }).then((result) => JSON.stringify(result.violations))`)
	var violations []struct {
		ID    string `json:"id"`
		Help  string `json:"help"`
		Nodes []struct {
			HTML    string `json:"html"`
			Summary string `json:"failureSummary"`
		} `json:"nodes"`
	}
	p.must(json.Unmarshal([]byte(report), &violations))
	var all []string
	for _, v := range violations {
		for _, node := range v.Nodes {
			all = append(all, fmt.Sprintf("%s (%s): %s\n%s", v.ID, v.Help, node.HTML, node.Summary))
		}
	}
	return all
}
