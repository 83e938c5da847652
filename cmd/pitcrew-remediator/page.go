package main

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/pitcrew/pitcrew/docs/runbooks"
	"github.com/pitcrew/pitcrew/remediator"
)

// pageFlags are the settings of the incident page and of the runbooks' address.
func pageFlags(f *pflag.FlagSet, o *remediator.Options) {
	f.StringVar(&o.Page, "page", env("PITCREW_PAGE", ""), "`address` of the incident page and the runbooks, such as 127.0.0.1:9403; empty: none (PITCREW_PAGE)")
	f.StringVar(&o.PageAccess, "page-access", env("PITCREW_PAGE_ACCESS", ""), "`file` of tokens, roles and proxies that may use the page; read again when it changes (PITCREW_PAGE_ACCESS)")
	f.BoolVar(&o.PageActions, "page-actions", os.Getenv("PITCREW_PAGE_ACTIONS") == "true", "let operators approve, reject, hold, cancel and undo on the page (PITCREW_PAGE_ACTIONS)")
	f.StringVar(&o.PagePeople, "page-people", env("PITCREW_PAGE_PEOPLE", ""), "`file` of what people did, CSV or JSON lines of time, node, action: the page sets observed incidents against it (PITCREW_PAGE_PEOPLE)")
	f.StringVar(&o.Runbooks, "runbooks-base-url", env("PITCREW_RUNBOOKS_BASE_URL", runbooks.DefaultBase), "`address` below which notices find the runbooks, such as https://pitcrew.example.com/runbooks/ (PITCREW_RUNBOOKS_BASE_URL)")
}

// checkPage refuses settings of the page that cannot work.
func checkPage(o *remediator.Options) error {
	if o.Page != "" && o.PageAccess == "" {
		return errors.New("--page needs --page-access (PITCREW_PAGE_ACCESS): a file of those who may use the page")
	}
	u, err := url.Parse(o.Runbooks)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("--runbooks-base-url %q (PITCREW_RUNBOOKS_BASE_URL): must be an address such as https://pitcrew.example.com/runbooks/", o.Runbooks)
	}
	o.Runbooks = strings.TrimSpace(o.Runbooks)
	return nil
}
