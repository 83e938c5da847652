package page

import (
	"embed"
	"io/fs"
	"net/http"
	"net/url"
	"strings"
	"time"
)

//go:embed static
var static embed.FS

// policyHeader lets a page load its own script and style, and nothing from anywhere else. No script or style is inline.
const policyHeader = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// headers are on every answer.
var headers = map[string]string{
	"Content-Security-Policy":      policyHeader,
	"X-Content-Type-Options":       "nosniff",
	"X-Frame-Options":              "DENY",
	"Referrer-Policy":              "same-origin",
	"Cross-Origin-Opener-Policy":   "same-origin",
	"Cross-Origin-Resource-Policy": "same-origin",
	"Permissions-Policy":           "camera=(), microphone=(), geolocation=()",
	"Cache-Control":                "no-store",
}

// maxForm bounds what a request may send.
const maxForm = 16 << 10

// Handler answers every request.
func (p *Page) Handler() http.Handler {
	mux := http.NewServeMux()
	files, _ := fs.Sub(static, "static") // the folder is embedded
	assets := http.StripPrefix("/static/", http.FileServerFS(files))
	mux.Handle("GET /static/{file}", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "public, max-age=300")
		assets.ServeHTTP(w, r)
	}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /login", p.serveLogin)
	mux.HandleFunc("POST /login", p.login)
	mux.HandleFunc("POST /logout", p.logout)
	mux.HandleFunc("GET /runbooks/{$}", p.serveRunbook)
	mux.HandleFunc("GET /runbooks/{name}", p.serveRunbook)
	for pattern, h := range map[string]func(http.ResponseWriter, *http.Request, *Person){
		"GET /{$}":            p.serveList,
		"GET /incidents/{id}": p.serveIncident,
		"GET /fleet":          p.serveFleet,
		"GET /observed":       p.serveObserved,
		"GET /live":           p.serveLive,
	} {
		mux.HandleFunc(pattern, p.reads(h))
	}
	if p.o.Actions {
		mux.HandleFunc("POST /incidents/{id}/{act}", p.acts(p.answer))
		mux.HandleFunc("POST /nodes/{node}/uncordon", p.acts(p.uncordon))
		mux.HandleFunc("POST /switch/{act}", p.acts(p.switchOver))
	}
	cross := http.NewCrossOriginProtection() // a POST of another site is refused, whatever its cookies are
	guarded := cross.Handler(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for k, v := range headers {
			w.Header().Set(k, v)
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		guarded.ServeHTTP(w, r)
	})
}

// reads lets in whoever may read.
func (p *Page) reads(h func(http.ResponseWriter, *http.Request, *Person)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		who, err := p.gate.person(r)
		switch {
		case err != nil:
			p.o.Log.Error("incident page: nobody is let in", "error", err)
			http.Error(w, "The access file cannot be read; the log of the remediator has the reason.", http.StatusServiceUnavailable)
		case who != nil:
			h(w, r, who)
		case r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "text/html"):
			http.Redirect(w, r, "/login?next="+url.QueryEscape(r.URL.RequestURI()), http.StatusSeeOther)
		default:
			w.Header().Set("WWW-Authenticate", `Bearer realm="pitcrew"`)
			http.Error(w, refusal(r), http.StatusUnauthorized)
		}
	}
}

// refusal tells a program why it is not let in, and what to send instead.
func refusal(r *http.Request) string {
	if r.Header.Get("Authorization") == "" {
		return "a token is required: send Authorization: Bearer TOKEN, or sign in at /login with a browser"
	}
	return "the access file of the remediator does not list this token; write it as Authorization: Bearer TOKEN"
}

// acts lets in operators whose form came from this page.
func (p *Page) acts(h func(http.ResponseWriter, *http.Request, *Person)) http.HandlerFunc {
	return p.reads(func(w http.ResponseWriter, r *http.Request, who *Person) {
		if err := r.ParseForm(); err != nil {
			p.fail(w, r, who, http.StatusBadRequest, "The form cannot be read, or is too large.")
			return
		}
		bearer := strings.HasPrefix(r.Header.Get("Authorization"), "Bearer ") // no browser sends it unasked
		switch {
		case who.Role != Operator:
			p.fail(w, r, who, http.StatusForbidden, "Your role is "+string(who.Role)+". Only an operator may do this.")
		case !bearer && !p.formOf(r):
			p.fail(w, r, who, http.StatusForbidden, "The form is not from this page, or is too old. Reload the page and try again.")
		default:
			h(w, r, who)
		}
	})
}

// secure reports whether the browser reached us by TLS: directly, or by a proxy that we trust.
func (p *Page) secure(r *http.Request) bool {
	if r.TLS != nil {
		return true
	}
	a, err := p.gate.current()
	return err == nil && a.Proxy != nil && a.Proxy.sent(r) && r.Header.Get("X-Forwarded-Proto") == "https"
}

func (p *Page) cookie(r *http.Request, name, value string, lasts time.Duration) *http.Cookie {
	return &http.Cookie{Name: name, Value: value, Path: "/", HttpOnly: true, Secure: p.secure(r), SameSite: http.SameSiteLaxMode, MaxAge: int(lasts.Seconds())}
}
