package podresources

import (
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/collector/apiserver"
)

// opened are the clients that components of this process share, so that the kubelet and the API server are asked once and not by each.
var opened = struct {
	sync.Mutex
	by map[source]*Client
}{by: map[source]*Client{}}

type source struct {
	socket string
	api    apiserver.Options
}

// Open gives the client of the kubelet behind the socket, which asks the API server of o, where there is one, for what the kubelet only names.
// Who opens the same gets the same client, and each has to Stop it.
func Open(socket string, o apiserver.Options, log *zap.Logger) (*Client, error) {
	opened.Lock()
	defer opened.Unlock()
	of := source{socket, o}
	if c, ok := opened.by[of]; ok {
		c.users++
		return c, nil
	}
	api, err := apiserver.New(o)
	if err != nil {
		return nil, err
	}
	c := New(socket, nil, log, time.Now)
	if api != nil {
		c.directory = api
	}
	if socket == "" {
		return c, nil
	}
	c.users, c.of = 1, of
	opened.by[of] = c
	return c, nil
}

// left reports whether others still use a shared client.
func (c *Client) left() bool {
	opened.Lock()
	defer opened.Unlock()
	if c.users == 0 {
		return false
	}
	if c.users--; c.users > 0 {
		return true
	}
	delete(opened.by, c.of)
	return false
}
