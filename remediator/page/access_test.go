package page

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"
)

func TestNobodyReadsWithoutATokenAndAReaderDoesNotAct(t *testing.T) {
	w := newWorld(t)
	w.put(asking("inc-1"))
	nobody := w.browser()
	for _, path := range []string{"/", "/incidents/inc-1", "/fleet", "/observed", "/live"} {
		if code, text, head := nobody.do(http.MethodGet, path, nil); code != http.StatusSeeOther || !strings.HasPrefix(head.Get("Location"), "/login") || strings.Contains(text, "xid/79") {
			t.Errorf("%s without a token: %d %s", path, code, head.Get("Location"))
		}
	}
	nobody.head = map[string]string{"Accept": "application/json"}
	if code, text, head := nobody.do(http.MethodGet, "/", nil); code != http.StatusUnauthorized || head.Get("WWW-Authenticate") == "" || !strings.Contains(text, "send Authorization: Bearer TOKEN") {
		t.Errorf("a program without a token: %d %s", code, text)
	}
	nobody.head = map[string]string{"Accept": "application/json", "Authorization": "Bearer " + readerToken + "x"}
	if code, text, _ := nobody.do(http.MethodGet, "/", nil); code != http.StatusUnauthorized || !strings.Contains(text, "does not list this token") || strings.Contains(text, readerToken) {
		t.Errorf("a wrong token: %d %s", code, text)
	}
	if code, text := w.signedIn(readerToken).get("/incidents/inc-none"); code != http.StatusNotFound || !strings.Contains(text, `href="/">Back`) {
		t.Errorf("a missing incident does not lead to the list: %d\n%s", code, text)
	}
	if code, _ := w.browser().get("/runbooks/PitcrewIncident"); code != http.StatusOK {
		t.Errorf("a runbook needs a token: %d", code)
	}
	reader := w.signedIn(readerToken)
	_, text := reader.get("/incidents/inc-1")
	form := hiddenFields(text)
	for _, path := range []string{"/incidents/inc-1/approve", "/nodes/a2/uncordon", "/switch/pause"} {
		if code, _, _ := reader.do(http.MethodPost, path, form); code != http.StatusForbidden {
			t.Errorf("a reader posts to %s: %d", path, code)
		}
	}
	if i, _, err := w.store.Get(t.Context(), "inc-1"); err != nil || i.Approval != "" || len(w.acts) > 0 {
		t.Errorf("%v %q %v", err, i.Approval, w.acts)
	}
}

func TestOnlyAFormOfThisPageActs(t *testing.T) {
	w := newWorld(t)
	w.put(asking("inc-1"))
	b := w.signedIn(operatorToken)
	_, text := b.get("/incidents/inc-1")
	form := hiddenFields(text)
	for name, c := range map[string]struct {
		form url.Values
		head map[string]string
	}{
		"no value":              {url.Values{"seen": form["seen"]}, nil},
		"another value":         {url.Values{"seen": form["seen"], "form": {strings.Repeat("x", 26)}}, nil},
		"from another site":     {form, map[string]string{"Sec-Fetch-Site": "cross-site"}},
		"another origin":        {form, map[string]string{"Origin": "https://evil.example"}},
		"a sibling's subdomain": {form, map[string]string{"Sec-Fetch-Site": "same-site"}},
	} {
		b.head = c.head
		if code, _, _ := b.do(http.MethodPost, "/incidents/inc-1/approve", c.form); code != http.StatusForbidden {
			t.Errorf("%s: %d", name, code)
		}
	}
	b.head = nil
	if code, _, _ := b.do(http.MethodPost, "/incidents/inc-1/approve", url.Values{"reason": {strings.Repeat("x", maxForm)}}); code != http.StatusBadRequest {
		t.Errorf("a form that is too large: %d", code)
	}
	if i, _, err := w.store.Get(t.Context(), "inc-1"); err != nil || i.Approval != "" || len(w.acts) > 0 {
		t.Errorf("%v %q %v", err, i.Approval, w.acts)
	}
	b.head = map[string]string{"Sec-Fetch-Site": "same-origin"}
	if code, text, _ := b.do(http.MethodPost, "/incidents/inc-1/approve", form); code != http.StatusSeeOther {
		t.Errorf("a form of this page: %d\n%s", code, text)
	}
}

func TestWithoutActionsNoRequestChangesAnything(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Actions = false })
	w.put(asking("inc-1"))
	b := w.signedIn(operatorToken)
	_, text := b.get("/incidents/inc-1")
	if strings.Contains(text, `action="/incidents/`) || !strings.Contains(text, "Read only") {
		t.Error("the page offers an action")
	}
	for _, path := range []string{"/incidents/inc-1/approve", "/nodes/a2/uncordon", "/switch/pause"} {
		if code, _, _ := b.do(http.MethodPost, path, hiddenFields(text)); code != http.StatusNotFound && code != http.StatusMethodNotAllowed {
			t.Errorf("%s: %d", path, code)
		}
	}
}

func TestASessionEndsWithItsTimeItsTokenAndAnyChangeOfIt(t *testing.T) {
	a, err := ParseAccess([]byte(accessText))
	if err != nil {
		t.Fatal(err)
	}
	value := a.issue("olga", began.Add(sessionLasts))
	if p := a.session(value, began); p == nil || p.Name != "olga" || p.Role != Operator {
		t.Fatalf("its own session is refused: %+v", p)
	}
	if a.session(value, began.Add(sessionLasts)) != nil {
		t.Error("it outlasts its time")
	}
	parts := strings.Split(value, ".")
	reader := strings.Split(a.issue("rita", began.Add(sessionLasts)), ".")
	for name, forged := range map[string]string{
		"a longer time":       parts[0] + "." + "9999999999" + "." + parts[2],
		"another's name":      parts[0] + "." + reader[1] + "." + reader[2],
		"no code":             parts[0] + "." + parts[1] + ".",
		"nothing":             "",
		"too many parts":      value + ".x",
		"a name that is gone": "eHg." + parts[1] + "." + parts[2],
	} {
		if a.session(forged, began) != nil {
			t.Errorf("%s is let in", name)
		}
	}
	other, _ := ParseAccess([]byte(strings.Replace(accessText, operatorToken, operatorToken+"2", 1)))
	if other.session(value, began) != nil {
		t.Error("it outlasts its token")
	}
}

func TestAnAccessFileThatChangesCountsAtOnceAndAWrongOneLetsNobodyIn(t *testing.T) {
	w := newWorld(t)
	b := w.signedIn(operatorToken)
	write := func(text string, after time.Duration) {
		t.Helper()
		if err := os.WriteFile(w.access, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(after) // two writes may be of the same instant
		if err := os.Chtimes(w.access, at, at); err != nil {
			t.Fatal(err)
		}
	}
	write(strings.Replace(accessText, "operator, token", "reader, token", 1), time.Second)
	if _, text := b.get("/"); !strings.Contains(text, "olga, reader") {
		t.Error("a role that was taken away still counts")
	}
	write("tokens: [", 2*time.Second)
	if code, _ := b.get("/"); code != http.StatusServiceUnavailable {
		t.Errorf("with a wrong file: %d", code)
	}
	write(strings.Replace(accessText, operatorToken, "another-token-another-token", 1), 3*time.Second)
	if code, _ := b.get("/"); code != http.StatusSeeOther {
		t.Errorf("with a token that was taken away: %d", code)
	}
}

func TestAWrongAccessFileIsRefusedWithItsReasonAndWithoutItsTokens(t *testing.T) {
	for text, want := range map[string]string{
		"{}": "nobody could use the page",
		"tokens:\n- {name: a, role: admin, token: " + readerToken + "}":                                                           "role must be reader or operator",
		"tokens:\n- {name: a, role: reader, token: secretsecret}":                                                                 "at least 24 characters",
		"tokens:\n- {role: reader, token: " + readerToken + "}":                                                                   "name is empty",
		"tokens:\n- {name: a, role: reader, token: " + readerToken + "}\n- {name: a, role: reader, token: " + operatorToken + "}": "there twice",
		"proxy: {userHeader: X}":     "from is empty",
		"proxy: {from: [everybody]}": "not a network",
		"tokenz: []":                 "tokenz",
	} {
		_, err := ParseAccess([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secretsecret") || strings.Contains(err.Error(), readerToken) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestAProxysHeadersCountOnlyFromTheProxy(t *testing.T) {
	a, err := ParseAccess([]byte(accessText))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		from, user, groups string
		want               Role
	}{
		{"192.0.2.7:1", "ann", "dev, sre", Operator},
		{"192.0.2.7:1", "ann", "dev", Reader},
		{"[::ffff:192.0.2.7]:1", "ann", "", Reader},
		{"192.0.2.7:1", "", "sre", ""},
		{"198.51.100.7:1", "ann", "sre", ""},
		{"nonsense", "ann", "sre", ""},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = c.from
		r.Header.Set("X-Forwarded-User", c.user)
		r.Header.Set("X-Forwarded-Groups", c.groups)
		p := a.Proxy.person(r)
		if c.want == "" && p != nil || c.want != "" && (p == nil || p.Role != c.want || p.Name != "ann") {
			t.Errorf("%+v: %+v", c, p)
		}
	}
}

func TestEachAnswerCarriesTheHeadersThatKeepOthersOut(t *testing.T) {
	w := newWorld(t)
	w.put(healed("inc-1"))
	b := w.signedIn(readerToken)
	for _, path := range []string{"/", "/incidents/inc-1", "/incidents/none", "/fleet", "/login", "/runbooks/", "/static/page.js", "/nothing"} {
		_, text, head := b.do(http.MethodGet, path, nil)
		for name, want := range headers {
			if got := head.Get(name); got != want && name != "Cache-Control" {
				t.Errorf("%s: %s is %q", path, name, got)
			}
		}
		for _, bad := range []string{"<script>", " style=", " onclick=", " onload=", "javascript:", `src="http`, `rel="stylesheet" href="http`} {
			if strings.Contains(text, bad) && path != "/static/page.js" {
				t.Errorf("%s holds %q, which the policy does not allow", path, bad)
			}
		}
	}
	if strings.Contains(policyHeader, "unsafe") {
		t.Error("the policy allows what is unsafe")
	}
	for next, want := range map[string]string{"/incidents/inc-1?x=1": "/incidents/inc-1?x=1", "//evil.example/": "/", "https://evil.example": "/", `/\evil.example`: "/", "": "/"} {
		if got := within(next); got != want {
			t.Errorf("after the sign-in %q leads to %q", next, got)
		}
	}
}
