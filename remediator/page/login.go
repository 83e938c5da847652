package page

import (
	"crypto/rand"
	"crypto/subtle"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	formCookie = "pitcrew_form" // the value that each form of this browser repeats
	formField  = "form"
)

// formCode is the value that forms of this browser carry. It is made at the first page and kept by the browser alone, so that any replica
// can check it.
func (p *Page) formCode(w http.ResponseWriter, r *http.Request) string {
	if c, err := r.Cookie(formCookie); err == nil && len(c.Value) >= minToken {
		return c.Value
	}
	code := rand.Text()
	http.SetCookie(w, p.cookie(r, formCookie, code, 30*24*time.Hour))
	return code
}

// formOf reports whether a form carries the value of its browser.
func (p *Page) formOf(r *http.Request) bool {
	c, err := r.Cookie(formCookie)
	return err == nil && len(c.Value) >= minToken && subtle.ConstantTimeCompare([]byte(c.Value), []byte(r.PostFormValue(formField))) == 1
}

type loginView struct {
	head
	Wrong bool
	Next  string // where the person wanted to go
}

func (p *Page) serveLogin(w http.ResponseWriter, r *http.Request) {
	p.showLogin(w, r, http.StatusOK, false)
}

func (p *Page) showLogin(w http.ResponseWriter, r *http.Request, code int, wrong bool) {
	p.show(w, r, code, "login", loginView{head: p.head(w, r, nil, "Sign in"), Wrong: wrong, Next: within(r.FormValue("next"))})
}

// within is an address of this page; anything else becomes its root, so that a link cannot lead elsewhere after the sign-in.
func within(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.IsAbs() || u.Host != "" || !strings.HasPrefix(u.Path, "/") || strings.HasPrefix(address, "//") || strings.ContainsAny(address, "\\\r\n\t") {
		return "/"
	}
	return u.RequestURI()
}

func (p *Page) login(w http.ResponseWriter, r *http.Request) {
	a, err := p.gate.current()
	if err != nil {
		p.o.Log.Error("incident page: nobody is let in", "error", err)
		http.Error(w, "The access file cannot be read; the log of the remediator has the reason.", http.StatusServiceUnavailable)
		return
	}
	if err := r.ParseForm(); err != nil || !p.formOf(r) {
		p.showLogin(w, r, http.StatusForbidden, false)
		return
	}
	who := a.holder(r.PostFormValue("token"))
	if who == nil {
		p.o.Log.Warn("incident page: a token was refused", "from", r.RemoteAddr)
		p.showLogin(w, r, http.StatusUnauthorized, true)
		return
	}
	http.SetCookie(w, p.cookie(r, sessionCookie, a.issue(who.Name, p.o.Now().Add(sessionLasts)), sessionLasts))
	http.Redirect(w, r, within(r.PostFormValue("next")), http.StatusSeeOther)
}

func (p *Page) logout(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err == nil && p.formOf(r) {
		http.SetCookie(w, p.cookie(r, sessionCookie, "", -time.Second))
	}
	http.Redirect(w, r, "/login", http.StatusSeeOther)
}
