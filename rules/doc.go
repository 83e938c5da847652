// Package rules is what Pitcrew knows about error codes: Xid, SXid, the NVLink 5
// sub-codes of Xid 144 to 150, the recovery actions of Xid 154, and the kernel
// lines that carry no code. It is words, not code: the tables are files in this
// folder, compiled in, and an operator may change any row of them in YAML.
//
// It promises that a table which loads holds no unknown severity, advice or
// role and no code twice, that a lookup never fails (a code without a row comes
// back as unknown, with Known false, at warning and contact-support), and that
// a loaded Tables is never changed again and may be shared.
//
// It does not read kernel lines (package kernel of the xid receiver does) and
// decides nothing: advice is what the tables say, a policy chooses.
package rules
