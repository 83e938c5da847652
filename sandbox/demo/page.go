package demo

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// PageURL is the address of the incident page; empty if it is not served. It signs in as an operator: whoever has it may act.
func (s *Stage) PageURL() string { return s.page }

// servePage gives the remediator's flags for the incident page, with a token that only this stage knows; none if no page is wanted.
func (s *Stage) servePage() ([]string, error) {
	if !s.o.Page {
		return nil, nil
	}
	p, err := s.port("page")
	if err != nil {
		return nil, err
	}
	token, file := rand.Text(), filepath.Join(s.box.Dir(), "page-access.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, "tokens:\n- {name: demo, role: operator, token: %s}\n", token), 0o600); err != nil {
		return nil, err
	}
	address := "127.0.0.1:" + strconv.Itoa(p)
	s.page = "http://" + address + "/login#" + token
	return []string{"--page", address, "--page-access", file, "--page-actions", "--runbooks-base-url", "http://" + address + "/runbooks/"}, nil
}
