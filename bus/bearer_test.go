package bus

import (
	"encoding/base64"
	"strings"
	"testing"
)

func claims(json string) string {
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(json)) + ".c2ln"
}

const ofAgent = `{"aud":["pitcrew-nats"],"exp":1800000000,"kubernetes.io":{"namespace":"pitcrew-system","serviceaccount":{"name":"pitcrew-agent"},"pod":{"name":"a","uid":"u.1"},"node":{"name":"n.1"}}}`

func TestABearersInboxIsItsPodsAlone(t *testing.T) {
	who, err := ReadBearer(claims(ofAgent))
	if err != nil || who.String() != "system:serviceaccount:pitcrew-system:pitcrew-agent" || who.Expires.Unix() != 1_800_000_000 {
		t.Fatalf("%+v, %v", who, err)
	}
	if in := who.Inbox(); in != "_INBOX.pitcrew-system.pitcrew-agent.n=2E1.u=2E1" {
		t.Error(in)
	}
	for what, other := range map[string]Bearer{
		"another pod's": {Namespace: who.Namespace, Account: who.Account, Node: who.Node, PodUID: "u"},
		"no pod's":      {Namespace: who.Namespace, Account: who.Account, Node: who.Node},
		"no node's":     {Namespace: who.Namespace, Account: who.Account},
	} {
		if a, b := other.Inbox()+".", who.Inbox()+"."; strings.HasPrefix(a, b) || strings.HasPrefix(b, a) {
			t.Errorf("%s inbox %s lies in %s, or the other way round", what, a, b)
		}
	}
}

func TestWhatIsNoTokenForNATSIsRefusedInWords(t *testing.T) {
	for token, says := range map[string]string{
		"": "no service account", "a.b.c": "no service account", claims("{"): "no service account", claims(`{"aud":["pitcrew-nats"]}`): "no service account",
		claims(strings.Replace(ofAgent, "pitcrew-nats", "vault", 1)): `meant for ["vault"]`, strings.Repeat("x", maxToken+1): "more than",
	} {
		if _, err := ReadBearer(token); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%.20s: %v, want %q", token, err, says)
		}
	}
}

func FuzzReadBearer(f *testing.F) {
	f.Add(claims(ofAgent))
	f.Add("e30.e30.e30")
	f.Fuzz(func(t *testing.T, token string) {
		who, err := ReadBearer(token)
		if err != nil {
			return
		}
		if in := who.Inbox(); who.Account == "" || strings.ContainsAny(in, " *>\t\r\n") || strings.Count(in, ".") != 4 {
			t.Errorf("%+v hears on %q", who, in)
		}
	})
}
