package sandbox

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/pitcrew/pitcrew/sandbox/freeport"
)

// link is a node's connection to the front-end network: its kubelet's requests to the API server, its kubelet's own
// address, and what it reaches through Node.Proxy. While it is cut, nothing is delivered and nothing is refused, as
// behind a dead switch port. The training network and the storage are others.
type link struct {
	mu   sync.Mutex
	open chan struct{} // closed while the link is up
}

func newLink() *link {
	l := &link{open: make(chan struct{})}
	close(l.open)
	return l
}

// set cuts the link or mends it.
func (l *link) set(up bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.open:
		if !up {
			l.open = make(chan struct{})
		}
	default:
		if up {
			close(l.open)
		}
	}
}

func (l *link) state() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

// linked is a connection across a link. What comes while the link is cut is delivered when it is mended.
type linked struct {
	net.Conn
	link   *link
	closed chan struct{}
	once   sync.Once
}

func (l *link) conn(c net.Conn) net.Conn {
	return &linked{Conn: c, link: l, closed: make(chan struct{})}
}

func (c *linked) pass() error {
	select {
	case <-c.link.state():
		return nil
	case <-c.closed:
		return net.ErrClosed
	}
}

func (c *linked) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if gone := c.pass(); gone != nil {
		return 0, gone
	}
	return n, err
}

func (c *linked) Write(b []byte) (int, error) {
	if err := c.pass(); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

func (c *linked) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// listener puts every connection that it accepts across the link.
type listener struct {
	net.Listener
	link *link
}

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.link.conn(c), nil
}

// Cut takes the node off the front-end network: its kubelet and what goes through Proxy reach nobody and are reached by
// nobody. Its processes run on, and so do the training network and the storage. Join puts it back.
func (n *Node) Cut() { n.link.set(false) }

// Join puts a node that was cut off back on the front-end network.
func (n *Node) Join() { n.link.set(true) }

// Proxy gives an address by which the node's processes reach target, as long as the node is not cut off. It lasts as
// long as the sandbox.
func (n *Node) Proxy(target string) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	context.AfterFunc(n.sandbox.ctx, func() { l.Close() })
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			go n.forward(near, target)
		}
	}()
	return l.Addr().String(), nil
}

// forward copies between a process of the node and the target until either end closes.
func (n *Node) forward(near net.Conn, target string) {
	stop := context.AfterFunc(n.sandbox.ctx, func() { near.Close() })
	defer stop()
	defer near.Close()
	select { // the packets of a handshake are lost too
	case <-n.link.state():
	case <-n.sandbox.ctx.Done():
		return
	}
	c, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	far := n.link.conn(c)
	defer far.Close()
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(far, near)
		far.Close()
		close(ended)
	}()
	_, _ = io.Copy(near, far)
	near.Close()
	<-ended
}

func (n *Node) isCut() bool {
	select {
	case <-n.link.state():
		return false
	default:
		return true
	}
}

// meetings are the ports at which pods meet in place of their job's own. Pods have no network of their own here: a rank
// on a node that is cut off still listens at the job's port, where on a real network the pods that replace it have
// another address.
type meetings struct {
	mu    sync.Mutex
	ports map[string]string
}

const masterPort = "MASTER_PORT"

// meetingPort is the value of MASTER_PORT for a pod that starts now.
func (s *Sandbox) meetingPort(own string) (string, error) {
	if !slices.ContainsFunc(s.nodes, func(n *Node) bool { return n.isCut() && n.meetsAt(own) }) {
		return own, nil
	}
	s.meetings.mu.Lock()
	defer s.meetings.mu.Unlock()
	if s.meetings.ports[own] == "" {
		port, err := freeport.Claim()
		if err != nil {
			return "", err
		}
		if s.meetings.ports == nil {
			s.meetings.ports = map[string]string{}
		}
		s.meetings.ports[own] = strconv.Itoa(port)
	}
	return s.meetings.ports[own], nil
}

// meetsAt reports whether a pod on the node has that MASTER_PORT.
func (n *Node) meetsAt(port string) bool {
	n.mu.Lock()
	k := n.kubelet
	n.mu.Unlock()
	if k == nil {
		return false
	}
	k.mu.Lock()
	workers := slices.Collect(maps.Values(k.pods))
	k.mu.Unlock()
	return slices.ContainsFunc(workers, func(w *podWorker) bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.ContainsFunc(w.pod.Spec.Containers, func(c corev1.Container) bool {
			return slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == masterPort && e.Value == port })
		})
	})
}

// client is the kubelet's, across the node's link.
func (n *Node) client() (kubernetes.Interface, error) {
	config := rest.CopyConfig(n.sandbox.plane.config)
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		select {
		case <-n.link.state():
		case <-ctx.Done():
			return nil, errors.Join(errors.New("the node is cut off"), ctx.Err())
		}
		var d net.Dialer
		c, err := d.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return n.link.conn(c), nil
	}
	return kubernetes.NewForConfig(config)
}
