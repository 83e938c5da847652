// Command pagecheck goes through the incident page in a real browser as a person would: with the mouse, with the keyboard alone, on a phone, in
// light and dark. remediator/page starts it with a page that holds what the steps look for.
//
// It fails if a step does not lead where it should, if axe-core finds something serious, if the page asks another host, logs an error or is
// wider than a phone, or if the first paint takes too long. It leaves a screenshot of each page.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// step is something that a person does or sees.
type step = chromedp.Action[chromedp.Void]

type check struct {
	url, large, token, out, axe string
	paint                       time.Duration
	onlyLook                    bool

	mu    sync.Mutex
	found []string
}

func main() {
	var c check
	flag.StringVar(&c.url, "url", "", "address of the page")
	flag.StringVar(&c.large, "large", "", "address of a page with many incidents, for the first paint")
	flag.StringVar(&c.token, "token", "", "an operator's token")
	flag.StringVar(&c.out, "out", "", "folder of the screenshots")
	flag.StringVar(&c.axe, "axe", "", "file axe.min.js of axe-core; empty: accessibility is not checked")
	only := flag.String("look", "", "only look at these addresses of the page, separated by spaces")
	flag.DurationVar(&c.paint, "paint", 300*time.Millisecond, "how long the first paint may take, the median of nine")
	flag.Parse()
	if *only != "" {
		pages, c.onlyLook = nil, true
		for k, path := range strings.Fields(*only) {
			pages = append(pages, place{fmt.Sprintf("look-%d", k), path})
		}
	}
	if err := c.run(); err != nil {
		fmt.Fprintln(os.Stderr, "pagecheck:", err)
		os.Exit(1)
	}
}

func (c *check) fault(format string, a ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.found = append(c.found, fmt.Sprintf(format, a...))
}

func (c *check) run() error {
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.Flag("disable-dev-shm-usage", true))
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	defer cancel()
	ctx, cancel = context.WithTimeout(ctx, 4*time.Minute)
	defer cancel()
	ctx, cancel, err := c.tab(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	for _, part := range []struct {
		name string
		do   func(context.Context) error
	}{{"sign in", c.signIn}, {"looks", c.looks}, {"flows", c.flows}, {"keyboard", c.keyboard}, {"first paint", c.firstPaint}} {
		if c.onlyLook && part.name != "sign in" && part.name != "looks" {
			continue
		}
		from := time.Now()
		if err := part.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
		fmt.Printf("%-12s %s\n", part.name, time.Since(from).Round(10*time.Millisecond))
	}
	if len(c.found) > 0 {
		return errors.New(strings.Join(c.found, "\n"))
	}
	return nil
}

// tab is a new tab that notes what the page should never do.
func (c *check) tab(ctx context.Context) (context.Context, context.CancelFunc, error) {
	ctx, cancel := chromedp.NewContext(ctx)
	err := chromedp.Listen(ctx, func(e any) {
		switch e := e.(type) {
		case *runtime.EventExceptionThrown:
			c.fault("exception: %s", e.ExceptionDetails.Text)
		case *log.EventEntryAdded:
			if e.Entry.Level == log.EntryLevelError && !strings.Contains(e.Entry.Text, "status of 4") {
				c.fault("the browser reports: %s %s", e.Entry.Text, e.Entry.URL)
			}
		case *network.EventRequestWillBeSent:
			if u, err := url.Parse(e.Request.URL); err != nil || u.Hostname() != "127.0.0.1" && u.Scheme != "data" && u.Scheme != "about" {
				c.fault("the page asks another host: %s", e.Request.URL)
			}
		}
	})
	return ctx, cancel, err
}

// do runs steps; each may take ten seconds.
func do(ctx context.Context, steps ...step) error {
	for k, s := range steps {
		limited, cancel := context.WithTimeout(ctx, 10*time.Second)
		err := chromedp.Do(limited, s)
		cancel()
		if err != nil {
			at, _ := chromedp.Run(ctx, chromedp.Location())
			return fmt.Errorf("step %d at %s: %w", k+1, at, err)
		}
	}
	return nil
}

// ask gives the value of an expression.
func ask[T any](ctx context.Context, expression string, o ...chromedp.EvaluateOption) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return chromedp.Run(ctx, chromedp.Evaluate[T](expression, o...))
}

// holds waits until an expression is true. A page that is being left answers with an error for a moment.
func holds(expression string) step {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		for {
			if ok, err := chromedp.Evaluate[bool](expression)(ctx, t); err == nil && ok {
				return nil
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("it does not become true: %s", expression)
			case <-time.After(30 * time.Millisecond):
			}
		}
	})
}

// says waits until the page's text holds something, gone until it does not. The page's script runs by then: a key that is pressed before is lost.
func says(text string) step {
	return holds(fmt.Sprintf("document.readyState === \"complete\" && document.body.innerText.includes(%q)", text))
}
func gone(text string) step {
	return holds(fmt.Sprintf("document.readyState === \"complete\" && !document.body.innerText.includes(%q)", text))
}

// click clicks with the mouse once the element is there.
func click(what string) step {
	return chromedp.Steps(holds(fmt.Sprintf("!!document.querySelector(%q)", what)), chromedp.Click(chromedp.CSS(what)))
}

func fill(what, text string) step {
	return chromedp.Steps(holds(fmt.Sprintf("!!document.querySelector(%q)", what)), chromedp.SendKeys(chromedp.CSS(what), text))
}

// screen sets the size of the screen and the colors that the person prefers.
func screen(width, height int64, phone bool, scheme string) step {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		metrics := emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1, Mobile: phone}
		if _, err := cdp.Call(ctx, t, emulation.SetDeviceMetricsOverride, metrics); err != nil {
			return err
		}
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
		return err
	})
}

func (c *check) open(path string) step { return chromedp.Navigate(c.url + path) }

func (c *check) signIn(ctx context.Context) error {
	return do(ctx, c.open("/login#"+c.token), says("Sign out"), says("Incidents"))
}

// place is a page that is looked at.
type place struct{ name, path string }

var pages = []place{
	{"list", "/"}, {"incident-asks", "/incidents/inc-asks"}, {"incident-healed", "/incidents/inc-healed"}, {"incident-drift", "/incidents/inc-drift"},
	{"incident-parent", "/incidents/inc-parent"}, {"fleet", "/fleet"}, {"fleet-job", "/fleet?job=Job%2Ftrain%2Fllm"}, {"observed", "/observed"}, {"runbook", "/runbooks/PitcrewNeedsPerson"},
}

// looks opens each page on a desktop and a phone, in light and dark.
func (c *check) looks(ctx context.Context) error {
	for _, kind := range []struct {
		name          string
		width, height int64
		phone         bool
	}{{"desktop", 1280, 900, false}, {"phone", 390, 844, true}} {
		for _, scheme := range []string{"light", "dark"} {
			if err := do(ctx, screen(kind.width, kind.height, kind.phone, scheme)); err != nil {
				return err
			}
			for _, p := range pages {
				name := p.name + "-" + kind.name + "-" + scheme
				if err := c.look(ctx, p.path, name); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
		}
	}
	return do(ctx, screen(1280, 900, false, "light"))
}

func (c *check) look(ctx context.Context, path, name string) error {
	if err := do(ctx, c.open(path), holds(`!!document.querySelector("main h1")`)); err != nil {
		return err
	}
	wide, err := ask[[]string](ctx, `(() => {
		const w = document.documentElement.clientWidth;
		if (document.documentElement.scrollWidth <= w + 1) return [];
		return [...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > w + 1 && !e.closest(".wide, pre")).slice(0, 3).map(e => e.tagName + "." + e.className);
	})()`)
	if err != nil {
		return err
	}
	shot, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err != nil {
		return err
	}
	if len(wide) > 0 {
		c.fault("%s is wider than the screen: %v", name, wide)
	}
	if c.out != "" {
		if err := os.WriteFile(filepath.Join(c.out, name+".png"), shot, 0o644); err != nil {
			return err
		}
	}
	return c.accessible(ctx, name)
}

// accessible runs axe-core. The script is given to the page by the browser's own protocol, which the page's policy does not concern.
func (c *check) accessible(ctx context.Context, name string) error {
	if c.axe == "" {
		return nil
	}
	script, err := os.ReadFile(c.axe)
	if err != nil {
		return err
	}
	if _, err := ask[bool](ctx, string(script)+";true"); err != nil {
		return err
	}
	found, err := ask[[]string](ctx, `axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}).then(r =>
		r.violations.filter(v => ["serious", "critical"].includes(v.impact)).map(v => v.id + ": " + v.help + " at " + v.nodes.slice(0, 2).map(n => n.target.join(" ") + " (" + n.failureSummary.slice(0, 200) + ")").join(", ")))`, chromedp.EvalAwaitPromise)
	for _, f := range found {
		c.fault("%s: axe: %s", name, f)
	}
	return err
}

// flows are what an operator does: find, filter, understand, approve, hold, release, undo, read a runbook.
func (c *check) flows(ctx context.Context) error {
	other, cancel, err := c.tab(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	if err := do(other, c.open("/incidents/inc-asks"), says("Approve")); err != nil {
		return err
	}
	err = do(ctx, c.open("/"), fill("#q", "inc-asks\n"), says("1 to 1 of 1 incident"),
		click(".tabs a:nth-child(2)"), says("1 to 1 of 1 incident"), click("a.go"), says("Where the time went"),
		says("xid/79 (fell-off-bus) on a2"), says("Needs your answer"), says("Rules that were tried"),
		fill("#reason-0", "seen in the rack"), click(`form[action$="/approve"] button`), says("Your approval is recorded"), says("approved by olga"))
	if err != nil {
		return fmt.Errorf("approve: %w", err)
	}
	if err := do(other, says("approved by olga"), gone("Needs your answer")); err != nil { // nobody reloaded that tab
		return fmt.Errorf("the other tab is not live: %w", err)
	}
	err = do(ctx, c.open("/incidents/inc-open"), click(`form[action$="/hold-node"] button`), says("The hold is recorded"), says("Release a3"),
		click(`form[action$="/release-node"] button`), says("The hold is taken away"), says("Hold a3"),
		says("Cancel: uncordon a3"), click(`form[action$="/uncordon"] button`), says("The quarantine of the node is lifted"), gone("Cancel: uncordon a3"))
	if err != nil {
		return fmt.Errorf("hold, release, cancel: %w", err)
	}
	err = do(ctx, c.open("/incidents/inc-healed"), says("Undo: give a2 back"), click(`form[action$="/uncordon"] button`), says("The quarantine of the node is lifted"),
		click(`a[href="/runbooks/PitcrewIncident"]`), says("Giving a node back"))
	if err != nil {
		return fmt.Errorf("undo, runbook: %w", err)
	}
	return do(ctx, c.open("/incidents/inc-parent"), click(`form[action$="/hold"] button`), says("The hold is recorded"))
}

// keyboard finds and opens an incident, and acts on it, without a mouse.
func (c *check) keyboard(ctx context.Context) error {
	focus := func(what string) step {
		return holds(fmt.Sprintf("!!document.activeElement && document.activeElement.matches(%q)", what))
	}
	tabTo := func(what string) step {
		return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
			for range 80 {
				if there, err := chromedp.Evaluate[bool](fmt.Sprintf("document.activeElement.matches(%q)", what))(ctx, t); err != nil || there {
					return err
				}
				if _, err := chromedp.KeyEvent("\t")(ctx, t); err != nil {
					return err
				}
			}
			return fmt.Errorf("80 tabs do not lead to %s", what)
		})
	}
	// The protocol types a character even where the page takes the key, which a keyboard does not: hence the backspace.
	return do(ctx, c.open("/"), says("When they began"), chromedp.KeyEvent("\t"), focus(".skip"), chromedp.KeyEvent("\r"), focus("#main"),
		chromedp.KeyEvent("/"), focus("#q"), chromedp.KeyEvent("\b"), chromedp.KeyEvent("inc-keys\r"), says("1 to 1 of 1 incident"), chromedp.KeyEvent("j"), focus("a.go"), chromedp.KeyEvent("\r"), says("Where the time went"),
		tabTo("#reason-1"), chromedp.KeyEvent("not now"), chromedp.KeyEvent("\t"), focus(`form[action$="/reject"] button`), chromedp.KeyEvent("\r"), says("Your rejection is recorded"),
		says("rejected by olga"), chromedp.KeyEvent("g"), chromedp.KeyEvent("f"), says("GPUs in use"))
}

// firstPaint measures a list of many incidents.
func (c *check) firstPaint(ctx context.Context) error {
	if c.large == "" {
		return nil
	}
	c.url = c.large
	if err := do(ctx, c.open("/login#"+c.token), says("Sign out")); err != nil {
		return err
	}
	for _, path := range []string{"/", "/fleet"} {
		var all []float64
		for range 9 {
			if err := do(ctx, chromedp.Navigate(c.large+path), holds(`performance.getEntriesByName("first-contentful-paint").length > 0`)); err != nil {
				return err
			}
			at, err := ask[float64](ctx, `performance.getEntriesByName("first-contentful-paint")[0].startTime`)
			if err != nil {
				return err
			}
			all = append(all, at)
		}
		took := median(all)
		fmt.Printf("first paint of %s: %.0f ms (%.0f)\n", path, took, all)
		if took > float64(c.paint.Milliseconds()) {
			c.fault("the first paint of %s takes %.0f ms, %s are allowed", path, took, c.paint)
		}
	}
	return nil
}
