package kernel

import "bytes"

// phrase maps words of a line to the kind and case that rules know it by.
type phrase struct {
	words string
	kind  Kind
	is    string
}

var nvrmPhrases = []phrase{
	{"RmInitAdapter failed", GPUInit, initFailed},
	{"RmInitAdapter: Cannot", GPUInit, initFailed},
	{"rm_init_adapter failed", GPUInit, initFailed},
	{"Cannot attach gpu", GPUInit, initFailed},
	{"failed to wait for GFW_BOOT", GPUInit, initFailed},
	{"cannot proceed with booting GSP", GSP, gspFault},
	{"Received signal from GSP that", GSP, gspFault},
	{"Rate limiting GSP RPC error prints", GSP, gspFault},
}

const (
	initFailed = "adapter initialisation failed"
	gspFault   = "GSP firmware fault"
)

var aerPhrases = []phrase{
	{"AER: can't recover", AER, "unrecovered"},
	{"AER: device recovery failed", AER, "unrecovered"},
	{"severity=Corrected", AER, "correctable"},
	{"severity=Correctable", AER, "correctable"},
	{"severity=Uncorrected (Non-Fatal)", AER, "uncorrected non-fatal"},
	{"severity=Uncorrectable (Non-Fatal)", AER, "uncorrected non-fatal"},
	{"severity=Uncorrected (Fatal)", AER, "uncorrected fatal"},
	{"severity=Uncorrectable (Fatal)", AER, "uncorrected fatal"},
	{"Correctable error", AER, "correctable"},
	{"Corrected error", AER, "correctable"},
	{"Uncorrectable (Non-Fatal) error", AER, "uncorrected non-fatal"},
	{"Uncorrected (Non-Fatal) error", AER, "uncorrected non-fatal"},
	{"Uncorrectable (Fatal) error", AER, "uncorrected fatal"},
	{"Uncorrected (Fatal) error", AER, "uncorrected fatal"},
}

var mlx5Phrases = []phrase{
	{"Detected insufficient power", MLX5, "slot power"},
	{"Cable unplugged", MLX5, "cable"},
	{"Cable error", MLX5, "cable"},
	{"Link down", MLX5, "link down"},
	{"health compromised", MLX5, "health"},
	{"assert_var", MLX5, "health"},
	{"failed, status ", MLX5, "command failed"},
}

// nvrmSignal reads the driver's lines that carry no Xid.
func nvrmSignal(line, rest []byte, e *Event) Result {
	for i := range nvrmPhrases {
		if ph := &nvrmPhrases[i]; bytes.Contains(rest, []byte(ph.words)) {
			e.reset(ph.kind, line)
			e.Case = ph.is
			e.PCI = anyAddress(rest)
			return IsEvent
		}
	}
	return Nothing
}

// aer reads "pcieport 0000:00:02.0: PCIe Bus Error: severity=…" and "… AER: …".
// The lines that follow one ("device [10de:…] error status", "[ 5] Surprise Down
// Error") say more of it and are nothing by themselves.
func aer(line []byte, e *Event) Result {
	space := bytes.IndexByte(line[:min(len(line), 32)], ' ')
	if space < 1 {
		return Nothing
	}
	a, rest, ok := address(line[space+1:])
	if !ok {
		return Nothing
	}
	rest, ok = bytes.CutPrefix(rest, []byte(": "))
	if !ok || !bytes.HasPrefix(rest, []byte("AER: ")) && !bytes.HasPrefix(rest, []byte("PCIe Bus Error: ")) {
		return Nothing
	}
	return signal(aerPhrases, a, line, rest, e)
}

// mlx5 reads the network adapter's lines that tell of power, cable or firmware.
func mlx5(line []byte, e *Event) Result {
	return signal(mlx5Phrases, anyAddress(line), line, line, e)
}

func signal(phrases []phrase, a Address, line, rest []byte, e *Event) Result {
	for i := range phrases {
		if ph := &phrases[i]; bytes.Contains(rest, []byte(ph.words)) {
			e.reset(ph.kind, line)
			e.Case, e.PCI = ph.is, a
			return IsEvent
		}
	}
	return Nothing
}

// anyAddress finds the first PCI address in a line.
func anyAddress(b []byte) Address {
	for i := 0; i+10 <= len(b); {
		colon := bytes.IndexByte(b[i:], ':')
		if colon < 0 {
			break
		}
		at := i + colon
		// The domain's digits stand before the first colon.
		start := at
		for start > i && at-start < 8 && unhex(b[start-1]) >= 0 {
			start--
		}
		if a, _, ok := address(b[start:]); ok {
			return a
		}
		i = at + 1
	}
	return Address{}
}
