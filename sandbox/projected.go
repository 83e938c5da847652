package sandbox

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// projectedWait is how long a ConfigMap or a Secret may take to appear; a kubelet waits for ever.
const projectedWait = 10 * time.Second

// projected fills a folder with what the API holds, laid out as the kubelet does: files are links into ..data, itself a link to a folder.
// It is filled once and not renewed.
func (k *kubelet) projected(pod *corev1.Pod, dir string, v corev1.Volume) error {
	ctx, cancel := context.WithTimeout(k.node.sandbox.ctx, projectedWait)
	defer cancel()
	files, mode := map[string][]byte{}, (*int32)(nil)
	var err error
	switch {
	case v.ConfigMap != nil:
		mode = v.ConfigMap.DefaultMode
		err = k.fromConfigMap(ctx, pod, v.ConfigMap.Name, v.ConfigMap.Items, v.ConfigMap.Optional, files)
	case v.Secret != nil:
		mode = v.Secret.DefaultMode
		err = k.fromSecret(ctx, pod, v.Secret.SecretName, v.Secret.Items, v.Secret.Optional, files)
	case v.Projected != nil:
		mode = v.Projected.DefaultMode
		for _, s := range v.Projected.Sources {
			if err == nil {
				err = k.source(ctx, pod, s, files)
			}
		}
	}
	if err != nil {
		return fmt.Errorf("volume %s: %w", v.Name, err)
	}
	perm := os.FileMode(0o644)
	if mode != nil {
		perm = os.FileMode(*mode)
	}
	const now = "..2026"
	if err := os.MkdirAll(filepath.Join(dir, now), 0o755); err != nil {
		return err
	}
	if err := os.Symlink(now, filepath.Join(dir, "..data")); err != nil && !os.IsExist(err) {
		return err
	}
	for name, content := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, now, name)), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, now, name), content, perm); err != nil {
			return err
		}
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)); err != nil && !os.IsExist(err) {
			return err
		}
	}
	return nil
}

func (k *kubelet) source(ctx context.Context, pod *corev1.Pod, s corev1.VolumeProjection, files map[string][]byte) error {
	switch {
	case s.ConfigMap != nil:
		return k.fromConfigMap(ctx, pod, s.ConfigMap.Name, s.ConfigMap.Items, s.ConfigMap.Optional, files)
	case s.Secret != nil:
		return k.fromSecret(ctx, pod, s.Secret.Name, s.Secret.Items, s.Secret.Optional, files)
	case s.DownwardAPI != nil:
		for _, i := range s.DownwardAPI.Items {
			if i.FieldRef == nil {
				return fmt.Errorf("%s: the sandbox's nodes offer fieldRef only", i.Path)
			}
			value, ok := k.field(pod, i.FieldRef.FieldPath)
			if !ok {
				return fmt.Errorf("%s: unknown field %s", i.Path, i.FieldRef.FieldPath)
			}
			files[i.Path] = []byte(value)
		}
		return nil
	case s.ServiceAccountToken != nil:
		t := s.ServiceAccountToken
		ask := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: t.ExpirationSeconds,
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}}}
		if t.Audience != "" {
			ask.Spec.Audiences = []string{t.Audience}
		}
		made, err := k.client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, pod.Spec.ServiceAccountName, ask, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		files[t.Path] = []byte(made.Status.Token)
		return nil
	}
	return fmt.Errorf("the sandbox's nodes project configMap, secret, downwardAPI and serviceAccountToken only")
}

func (k *kubelet) fromConfigMap(ctx context.Context, pod *corev1.Pod, name string, items []corev1.KeyToPath, optional *bool, files map[string][]byte) error {
	m, err := appeared(ctx, optional, func() (*corev1.ConfigMap, error) {
		return k.client.CoreV1().ConfigMaps(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	})
	if m == nil || err != nil {
		return err
	}
	data := m.BinaryData
	if data == nil {
		data = map[string][]byte{}
	}
	for key, value := range m.Data {
		data[key] = []byte(value)
	}
	return pick("configMap "+name, data, items, optional, files)
}

func (k *kubelet) fromSecret(ctx context.Context, pod *corev1.Pod, name string, items []corev1.KeyToPath, optional *bool, files map[string][]byte) error {
	s, err := appeared(ctx, optional, func() (*corev1.Secret, error) {
		return k.client.CoreV1().Secrets(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	})
	if s == nil || err != nil {
		return err
	}
	return pick("secret "+name, s.Data, items, optional, files)
}

// appeared waits for an object that is not there yet, unless it is optional: then it is nil.
func appeared[T any](ctx context.Context, optional *bool, get func() (*T, error)) (*T, error) {
	for {
		got, err := get()
		if err == nil {
			return got, nil
		}
		if !apierrors.IsNotFound(err) {
			return nil, err
		}
		if optional != nil && *optional {
			return nil, nil
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// pick takes the keys that items name, under their paths; all of them where there are none.
func pick(what string, data map[string][]byte, items []corev1.KeyToPath, optional *bool, files map[string][]byte) error {
	for key, value := range data {
		if len(items) == 0 {
			files[key] = value
		}
	}
	for _, i := range items {
		value, ok := data[i.Key]
		if !ok && (optional == nil || !*optional) {
			return fmt.Errorf("%s has no key %s", what, i.Key)
		}
		if ok {
			files[i.Path] = value
		}
	}
	return nil
}
