// Package hook is the node agent's side of docs/hook-protocol.md: it finds the training pods of this node, reads the
// rings of their ranks and speaks with their sockets and with the launcher's.
//
// It promises:
//   - a pod is what its directory's path says it is; everything a pod writes is a claim, checked and bounded;
//   - nothing a pod does to its files can crash, block or redirect the reader: no symlink is followed, no FIFO is
//     waited on, a file cut short under the reader is an error;
//   - a rank is called gone only when its process is, not because a connection broke;
//   - nothing is polled: files are watched, sockets and processes are waited for.
//
// It judges nothing (the detector does) and decides nothing (the remediator does).
package hook
