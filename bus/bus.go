// Package bus is Pitcrew's use of NATS: subjects, streams, buckets, commands and an embedded server. It is the only importer
// of nats.go.
//
// It promises at-least-once delivery with a deterministic message id, so that a resend within JetStream's window is one
// message; that a finding accepted by a Publisher with a spool survives a restart of the process and of the server; and that a
// client started before its server, or cut off from it, comes back by itself. It does not judge ages or meanings.
package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Options say which NATS to use and how the streams are kept.
type Options struct {
	URL     string // nats://host:port[,...]
	Cluster string // name of the Kubernetes cluster, the first token of every subject
	Name    string // connection name shown to NATS operators
	Creds   string // path of a NATS credentials file, optional
	Token   string // optional
	// TokenFile holds a Kubernetes service account's token of Audience, optional. It is read at each connect.
	TokenFile string
	Replicas  int // of streams and buckets; 0 means 1
	MaxAge    time.Duration
	MaxBytes  int64
	Logger    *slog.Logger
}

// Defaults of Options.
const (
	DefaultURL      = nats.DefaultURL
	DefaultCluster  = "default"
	DefaultMaxAge   = 7 * 24 * time.Hour
	DefaultMaxBytes = 1 << 30
	dedupWindow     = 10 * time.Minute
	seenFor         = 30 * 24 * time.Hour
)

// Bus is a connection to one NATS and one cluster's subjects on it.
type Bus struct {
	nc      *nats.Conn
	js      jetstream.JetStream
	cluster string
	opts    Options
	log     *slog.Logger
	ensured atomic.Bool  // on the present connection
	shown   atomic.Int32 // tokens, and no connection since
	told    atomic.Bool  // that the server refuses, since there was a connection
	at      string       // the server, as people are told of it
	since   atomic.Int64 // when a connection was looked for, ns since 1970
	failed  atomic.Pointer[error]
	handles sync.Map // of buckets, by name
}

// Connect dials NATS. It does not wait for the server: a client that starts first connects when the server comes. Only
// unusable options are errors. Streams are made by EnsureStreams.
func Connect(o Options) (*Bus, error) {
	if o.URL == "" {
		o.URL = DefaultURL
	}
	if o.Cluster == "" {
		o.Cluster = DefaultCluster
	}
	if o.MaxAge == 0 {
		o.MaxAge = DefaultMaxAge
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.Replicas == 0 {
		o.Replicas = 1
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	at := Redacted(o.URL)
	log := o.Logger.With("nats", at)
	b := &Bus{cluster: o.Cluster, opts: o, log: log, at: at}
	b.since.Store(time.Now().UnixNano())
	opts := []nats.Option{
		nats.Name(o.Name), nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true),
		nats.CustomReconnectDelay(b.pause), nats.IgnoreAuthErrorAbort(), // what was refused may be allowed by the next token
		nats.ReconnectBufSize(-1), // no silent buffering: the spool is the buffer, and it is counted
		nats.PingInterval(5 * time.Second), nats.MaxPingsOutstanding(2),
		nats.SetCustomDialer(dialer{net.Dialer{Timeout: nats.DefaultTimeout}, &b.failed}),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			b.since.Store(time.Now().UnixNano())
			if err != nil {
				log.Warn("disconnected from NATS; reconnecting", "error", err)
			}
		}),
		nats.ConnectHandler(func(*nats.Conn) { b.shown.Store(0) }),
		nats.ReconnectHandler(func(*nats.Conn) {
			b.ensured.Store(false) // it may be another server, with an empty folder
			b.shown.Store(0)
			b.told.Store(false)
			log.Info("connected to NATS")
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { b.heard(err) }),
	}
	if o.Creds != "" {
		opts = append(opts, nats.UserCredentials(o.Creds))
	}
	if o.Token != "" {
		opts = append(opts, nats.Token(o.Token))
	}
	if o.TokenFile != "" {
		_, who, err := readTokenFile(o.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("NATS at %s is not asked: %w", at, err)
		}
		opts = append(opts, nats.TokenHandler(b.token), nats.CustomInboxPrefix(who.Inbox()))
	}
	nc, err := nats.Connect(o.URL, opts...)
	if err != nil {
		return nil, fmt.Errorf("NATS at %s is not asked: %w; its address is given by --nats or PITCREW_NATS, a file of its credentials by --creds or PITCREW_NATS_CREDS", at, unnamed(err))
	}
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(maxPending))
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("jetstream: %w", err)
	}
	b.nc, b.js = nc, js
	return b, nil
}

// Cluster is the name under which this bus publishes.
func (b *Bus) Cluster() string { return b.cluster }

// Connected reports whether the server is reachable now.
func (b *Bus) Connected() bool { return b.nc.IsConnected() }

// Wait blocks until the server is reachable and the streams exist, or ctx ends. Its error names the server.
func (b *Bus) Wait(ctx context.Context) error {
	status := b.nc.StatusChanged(nats.CONNECTED)
	defer b.nc.RemoveStatusListener(status)
	for !b.nc.IsConnected() {
		select {
		case <-ctx.Done():
			return b.away(ctx.Err())
		case <-status:
		}
	}
	if b.ensured.Load() {
		return nil
	}
	if err := b.ensure(ctx); err != nil {
		return b.Explain(err)
	}
	b.ensured.Store(true)
	return nil
}

// ensure makes the streams and buckets, or accepts them as an operator made them.
func (b *Bus) ensure(ctx context.Context) error {
	streams := []jetstream.StreamConfig{
		{
			Name: EventStream, Subjects: []string{eventPrefix + ".>"}, Storage: jetstream.FileStorage, Discard: jetstream.DiscardOld,
			Duplicates: dedupWindow, MaxAge: b.opts.MaxAge, MaxBytes: b.opts.MaxBytes, Replicas: b.opts.Replicas,
			Description: "Findings and steps of incidents, as CloudEvents",
		},
		{
			Name: ConditionStream, Subjects: []string{conditionPrefix + ".>"}, Storage: jetstream.FileStorage, MaxMsgsPerSubject: 1,
			Discard: jetstream.DiscardOld, MaxBytes: b.opts.MaxBytes / 4, Replicas: b.opts.Replicas,
			Description: "Current conditions of nodes: the last value per subject",
		},
	}
	for _, c := range streams {
		if b.there(ctx, c.Name) {
			continue
		}
		if _, err := b.js.CreateStream(ctx, c); err != nil && !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return fmt.Errorf("make stream %s: %w", c.Name, err)
		}
	}
	buckets := []jetstream.KeyValueConfig{
		{Bucket: IncidentBucket, History: 64, Storage: jetstream.FileStorage, Replicas: b.opts.Replicas},
		{Bucket: SeenBucket, History: 1, TTL: seenFor, Storage: jetstream.FileStorage, Replicas: b.opts.Replicas},
		{Bucket: ControlBucket, History: 64, Storage: jetstream.FileStorage, Replicas: b.opts.Replicas},
		{Bucket: StatementBucket, History: 1, TTL: statementsFor, Storage: jetstream.FileStorage, Replicas: b.opts.Replicas},
		{Bucket: FindingBucket, History: 1, TTL: findingsFor, MaxBytes: findingsMost, Storage: jetstream.FileStorage, Replicas: b.opts.Replicas},
		{Bucket: LedgerBucket, History: 8, Storage: jetstream.FileStorage, Replicas: b.opts.Replicas},
		{Bucket: AsideBucket, History: 1, TTL: seenFor, MaxBytes: asideMost, Storage: jetstream.FileStorage, Replicas: b.opts.Replicas},
		{Bucket: NoticeBucket, History: 1, TTL: seenFor, MaxBytes: noticesMost, Storage: jetstream.FileStorage, Replicas: b.opts.Replicas},
		{Bucket: AttemptBucket, History: 8, Storage: jetstream.FileStorage, Replicas: b.opts.Replicas},
	}
	for _, c := range buckets {
		if b.there(ctx, bucketStream+c.Bucket) {
			continue
		}
		if _, err := b.js.CreateKeyValue(ctx, c); err != nil && !errors.Is(err, jetstream.ErrBucketExists) {
			return fmt.Errorf("make bucket %s: %w", c.Bucket, err)
		}
	}
	b.ensureClasses(ctx)
	return nil
}

// ensureClasses makes the one bucket without which all else works: who must not make it waits for who may, and is told when it asks for it.
func (b *Bus) ensureClasses(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, optionalIn)
	defer cancel()
	if b.there(ctx, bucketStream+ClassBucket) {
		return
	}
	_, err := b.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket: ClassBucket, History: 1, TTL: classesFor, MaxBytes: classesMost, MaxValueSize: maxClassValue, Storage: jetstream.FileStorage, Replicas: b.opts.Replicas,
	})
	if err != nil && !errors.Is(err, jetstream.ErrBucketExists) {
		b.log.Debug("bucket not made; gateways do not exchange classes while it is not there", "bucket", ClassBucket, "error", err)
	}
}

// bucketStream begins the names of the streams that hold buckets.
const bucketStream = "KV_"

// there reports whether a stream is there. Who may only look needs no right to make one.
func (b *Bus) there(ctx context.Context, stream string) bool {
	_, err := b.js.Stream(ctx, stream)
	return err == nil
}

// Close drains subscriptions and closes the connection. A Publisher is closed before its Bus.
func (b *Bus) Close() {
	if b.nc.IsConnected() {
		if err := b.nc.FlushTimeout(time.Second); err != nil && b.nc.IsConnected() {
			b.log.Warn("flush", "error", err)
		}
	}
	b.nc.Close()
}
