package bus

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// TestEverySubscriptionEndsInAWildcard guards a property of the rights: NATS lets a server's answer go to any subject on which somebody
// listens, but the right to listen is by pattern. A literal subscription would take such an answer for a message of its own.
func TestEverySubscriptionEndsInAWildcard(t *testing.T) {
	allowed := map[string]bool{"question": true} // $SYS.REQ.USER.AUTH, on which only the server may publish
	found := 0
	for _, pattern := range []string{"*.go", "callout/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			fset := token.NewFileSet()
			tree, err := parser.ParseFile(fset, file, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(tree, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				method, ok := call.Fun.(*ast.SelectorExpr)
				if !ok || !strings.HasSuffix(method.Sel.Name, "Subscribe") && !strings.HasSuffix(method.Sel.Name, "SubscribeSync") {
					return true
				}
				found++
				if word, ok := call.Args[0].(*ast.Ident); ok && allowed[word.Name] {
					return true
				}
				sum, ok := call.Args[0].(*ast.BinaryExpr)
				if ok {
					last, isText := sum.Y.(*ast.BasicLit)
					ok = isText && (last.Value == `".*"` || last.Value == `".>"`)
				}
				if !ok {
					t.Errorf("%s: the subject of %s does not end in a wildcard", fset.Position(call.Pos()), method.Sel.Name)
				}
				return true
			})
		}
	}
	if found < 3 {
		t.Errorf("found %d subscriptions, want those of commands, beats and the callout", found)
	}
	for role := range duties {
		for _, s := range RightsOf(role, "c", "n", "_INBOX.x").Subscribe {
			if !strings.HasSuffix(s, ".*") && !strings.HasSuffix(s, ".>") {
				t.Errorf("role %s may subscribe to the literal subject %s", role, s)
			}
		}
	}
}

// TestOneNodesCredentialsReachNoSubjectOfAnother tries, on a real server, every way from one node's credentials to another node's
// commands: to publish, to listen, and to have the server's own answers sent there.
func TestOneNodesCredentialsReachNoSubjectOfAnother(t *testing.T) {
	url := users(t, RightsOf(RoleAgent, "demo.eu", "node.1", "_INBOX.node"))
	other := connect(t, url("pitcrew"))
	if err := other.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var handled atomic.Int64
	verbs := []string{VerbStatus, VerbArm, VerbGo, VerbManifest, VerbCancel, VerbRelease, VerbAbort}
	handlers := map[string]func(context.Context, Command) (Reply, error){}
	for _, v := range verbs {
		handlers[v] = func(context.Context, Command) (Reply, error) { handled.Add(1); return Reply{}, nil }
	}
	ended := make(chan error, 1)
	go func() { ended <- other.HandleCommands(ctx, "node.2", handlers) }()
	for try := 0; ; try++ { // until it listens
		if _, err := other.Request(ctx, "node.2", VerbStatus, Command{}); err == nil {
			break
		} else if try == 100 {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	handled.Store(0)

	var refused atomic.Int64
	rogue, err := nats.Connect(url("other"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) { refused.Add(1) }))
	if err != nil {
		t.Fatal(err)
	}
	defer rogue.Close()
	want := int64(0)
	for _, verb := range verbs {
		at := subject(commandPrefix, "demo.eu", "node.2", verb)
		body := []byte(`{"req":"x","pod_uids":["p"],"attempt":1}`)
		for name, err := range map[string]error{
			"publish":           rogue.Publish(at, body),
			"publish a request": rogue.PublishRequest(at, "_INBOX.node.x", body),
			"an answer to":      rogue.PublishRequest(subject(eventPrefix, "demo.eu", "node.1", "fault"), at, []byte("{}")),
		} {
			if err != nil {
				t.Errorf("%s %s: %v", name, at, err)
			}
		}
		want += 2 // the first two are refused; the third the server sends
		for _, listen := range []string{at, subject(commandPrefix, "demo.eu", "node.2") + ".*", commandPrefix + ".>"} {
			if _, err := rogue.SubscribeSync(listen); err != nil {
				t.Error(err)
			}
			want++
		}
	}
	if err := rogue.Flush(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); refused.Load() < want && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	if got := refused.Load(); got != want {
		t.Errorf("the server refused %d of %d", got, want)
	}
	if got := handled.Load(); got != 0 {
		t.Errorf("%d commands of another node were carried out", got)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestAnAnswerIsOnlyGivenToAQuestion(t *testing.T) {
	b := testBus(t)
	handled := 0
	handlers := map[string]func(context.Context, Command) (Reply, error){
		VerbStatus: func(context.Context, Command) (Reply, error) { handled++; return Reply{}, nil },
	}
	at := subject(commandPrefix, b.cluster, "node.2")
	for name, m := range map[string]*nats.Msg{
		"of another node":           {Subject: subject(commandPrefix, b.cluster, "node.1", VerbStatus), Reply: "x", Data: []byte("{}")},
		"shorter than its prefix":   {Subject: "x", Reply: "x", Data: []byte("{}")},
		"the prefix and no verb":    {Subject: at, Reply: "x", Data: []byte("{}")},
		"without a reply's subject": {Subject: at + "." + VerbStatus, Data: []byte("{}")},
	} {
		b.answer(t.Context(), m, "node.2", handlers)
		if handled != 0 {
			t.Errorf("%s: carried out", fmt.Sprintf("a command %s", name))
			handled = 0
		}
	}
}
