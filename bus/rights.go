package bus

import (
	"fmt"
	"slices"
	"strings"
)

// Role is what a client of the bus is for.
type Role string

// The roles. An agent and a gateway have a name, the node's and the pod's, under which alone they speak.
const (
	RoleAgent      Role = "agent"
	RoleGateway    Role = "gateway"
	RoleRemediator Role = "remediator"
	RoleOperator   Role = "operator"
	RoleReader     Role = "reader"
)

// Rights are the NATS permissions of a client: subjects that it may publish to, though not to those denied, and subscribe to, and whether
// it may answer what it is asked.
type Rights struct {
	Publish, Deny, Subscribe []string
	Answer                   bool
}

// ActingConsumer is the durable consumer of events of whoever acts on them. What another takes from it is lost to the remediator.
const ActingConsumer = "remediator"

// duty is what a role does on the bus. In subjects, {cluster} and {name} stand for tokens. Of the streams and buckets: may look whether
// each is there, all roles; follow is to be told of changes; pull is to fetch, which conditions and events need; get is to read a value.
type duty struct {
	publish, subscribe []string
	follow, pull, get  []string
	lists              []string // streams whose consumers are listed, to read how far they are behind
	put                []string // below $KV.
	makes, answers     bool
	acts               bool // by ActingConsumer
}

var (
	allStreams = []string{EventStream, ConditionStream}
	allBuckets = []string{IncidentBucket, SeenBucket, AttemptBucket, ControlBucket, StatementBucket, FindingBucket, ClassBucket, LedgerBucket, AsideBucket, NoticeBucket}
)

// duties is the one table of who may do what. It says nothing of streams' ends: no role may delete, purge or change one.
var duties = map[Role]duty{
	RoleAgent: {
		publish: []string{
			eventPrefix + ".{cluster}.{name}.*", conditionPrefix + ".{cluster}.{name}.*", beatPrefix + ".{cluster}.{name}",
		},
		subscribe: []string{commandPrefix + ".{cluster}.{name}.*"},
		answers:   true,
		follow:    []string{AttemptBucket, StatementBucket},
	},
	RoleGateway: {
		publish: []string{eventPrefix + ".{cluster}.{name}.*"},
		follow:  []string{StatementBucket, ClassBucket},
		put:     []string{FindingBucket + ".{cluster}.{name}.>", ClassBucket + ".{cluster}.{name}.>"},
	},
	RoleRemediator: {
		publish: []string{
			eventPrefix + ".{cluster}.>", conditionPrefix + ".{cluster}.>", commandPrefix + ".{cluster}.>",
		},
		subscribe: []string{beatPrefix + ".{cluster}.*"},
		makes:     true,
		acts:      true,
		pull:      allStreams,
		follow:    []string{IncidentBucket, AttemptBucket, ControlBucket, FindingBucket, NoticeBucket},
		get:       []string{IncidentBucket, SeenBucket, AttemptBucket, ControlBucket, LedgerBucket, NoticeBucket},
		put:       []string{IncidentBucket + ".>", SeenBucket + ".>", AttemptBucket + ".>", ControlBucket + ".>", LedgerBucket + ".>", AsideBucket + ".>", NoticeBucket + ".>"},
	},
	RoleOperator: {
		subscribe: []string{beatPrefix + ".{cluster}.*"},
		lists:     []string{EventStream},
		pull:      allStreams,
		follow:    []string{IncidentBucket, StatementBucket, FindingBucket, ControlBucket, LedgerBucket, AsideBucket},
		get:       []string{IncidentBucket, StatementBucket, ControlBucket, LedgerBucket, NoticeBucket},
		put:       []string{StatementBucket + ".>", ControlBucket + ".>", IncidentBucket + ".>"}, // an approval is written into the incident
	},
	RoleReader: {
		subscribe: []string{beatPrefix + ".{cluster}.*"},
		lists:     []string{EventStream},
		pull:      allStreams,
		follow:    []string{IncidentBucket, StatementBucket, FindingBucket, ControlBucket, LedgerBucket, AsideBucket},
		get:       []string{IncidentBucket, StatementBucket, ControlBucket, LedgerBucket, NoticeBucket},
	},
}

// RightsOf are what the credentials of a client have to allow, and no more. The name is the node's of an agent, the gateway's of a
// gateway, and of no use else; inbox begins the subjects on which it receives answers.
func RightsOf(r Role, cluster, name, inbox string) Rights {
	d := duties[r]
	if r == RoleGateway {
		name = gatewayMark + name
	}
	fill := strings.NewReplacer("{cluster}", Token(cluster), "{name}", Token(name))
	out := Rights{Answer: d.answers, Subscribe: append(slices.Clone(d.subscribe), inbox+".>"), Publish: slices.Clone(d.publish)}
	give := func(format string, names ...string) {
		for _, n := range names {
			out.Publish = append(out.Publish, fmt.Sprintf(format, n))
		}
	}
	streamsOf := func(buckets []string) (streams []string) {
		for _, b := range buckets {
			streams = append(streams, bucketStream+b)
		}
		return streams
	}
	every := append(slices.Clone(allStreams), streamsOf(allBuckets)...)
	give("$JS.API.STREAM.INFO.%s", every...)
	if d.makes {
		give("$JS.API.%s", "INFO")
		give("$JS.API.STREAM.CREATE.%s", every...)
	}
	consumed := append(slices.Clone(d.pull), streamsOf(d.follow)...)
	give("$JS.API.CONSUMER.CREATE.%s.>", consumed...)
	give("$JS.API.CONSUMER.DELETE.%s.>", consumed...)
	give("$JS.API.CONSUMER.INFO.%s.>", consumed...)
	give("$JS.API.CONSUMER.LIST.%s", d.lists...)
	give("$JS.FC.%s.>", streamsOf(d.follow)...)
	give("$JS.API.CONSUMER.MSG.NEXT.%s.>", d.pull...)
	give("$JS.ACK.%s.>", d.pull...)
	give("$JS.API.DIRECT.GET.%s.>", streamsOf(d.get)...)
	give("$KV.%s", d.put...)
	if !d.acts {
		for _, format := range []string{"$JS.API.CONSUMER.*.%s.%s", "$JS.API.CONSUMER.*.%s.%s.>", "$JS.API.CONSUMER.MSG.NEXT.%s.%s", "$JS.ACK.%s.%s.>"} {
			out.Deny = append(out.Deny, fmt.Sprintf(format, EventStream, ActingConsumer))
		}
	}
	for _, list := range [][]string{out.Publish, out.Subscribe} {
		for i, s := range list {
			list[i] = fill.Replace(s)
		}
	}
	return out
}
