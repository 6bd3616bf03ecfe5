package testkafka

import (
	"context"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// User is a user of SASL/SCRAM, who may do nothing but what a test allows.
type User struct{ Name, Password string }

const scramIterations = 4096 // the least that Kafka takes

// NewUser returns a user whom both mechanisms of SCRAM know, until the end of the test.
func NewUser(t *testing.T) User {
	t.Helper()
	user := User{Name: TopicName(t), Password: rand.Text()}
	user.SetPassword(t, user.Password)
	t.Cleanup(func() { user.forget(t) })
	return user
}

// SetPassword changes the password that the broker expects.
func (u User) SetPassword(t *testing.T, password string) {
	t.Helper()
	salt := make([]byte, 16)
	_, err := rand.Read(salt)
	require.NoError(t, err)
	sha256Salted, err := pbkdf2.Key(sha256.New, password, salt, scramIterations, sha256.Size)
	require.NoError(t, err)
	sha512Salted, err := pbkdf2.Key(sha512.New, password, salt, scramIterations, sha512.Size)
	require.NoError(t, err)
	for mechanism, salted := range map[int8][]byte{1: sha256Salted, 2: sha512Salted} {
		request := kmsg.NewPtrAlterUserSCRAMCredentialsRequest() // each takes a user once
		credential := kmsg.NewAlterUserSCRAMCredentialsRequestUpsertion()
		credential.Name, credential.Mechanism, credential.Iterations = u.Name, mechanism, scramIterations
		credential.Salt, credential.SaltedPassword = salt, salted
		request.Upsertions = append(request.Upsertions, credential)
		alterUsers(t, request)
	}
}

func (u User) forget(t *testing.T) {
	t.Helper()
	for _, mechanism := range []int8{1, 2} {
		request := kmsg.NewPtrAlterUserSCRAMCredentialsRequest()
		credential := kmsg.NewAlterUserSCRAMCredentialsRequestDeletion()
		credential.Name, credential.Mechanism = u.Name, mechanism
		request.Deletions = append(request.Deletions, credential)
		alterUsers(t, request)
	}
}

func alterUsers(t *testing.T, request *kmsg.AlterUserSCRAMCredentialsRequest) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), requestTimeout)
	defer cancel()
	response, err := request.RequestWith(ctx, newClient(t))
	require.NoError(t, err)
	for _, result := range response.Results {
		require.NoError(t, kerr.ErrorForCode(result.ErrorCode))
	}
}

// Allow lets the user do something with a topic, until the end of the test.
func (u User) Allow(t *testing.T, topic string, operations ...kmsg.ACLOperation) {
	t.Helper()
	request := kmsg.NewPtrCreateACLsRequest()
	for _, operation := range operations {
		acl := kmsg.NewCreateACLsRequestCreation()
		acl.ResourceType, acl.ResourceName = kmsg.ACLResourceTypeTopic, topic
		acl.ResourcePatternType = kmsg.ACLResourcePatternTypeLiteral
		acl.Principal, acl.Host = "User:"+u.Name, "*"
		acl.Operation, acl.PermissionType = operation, kmsg.ACLPermissionTypeAllow
		request.Creations = append(request.Creations, acl)
	}
	ctx, cancel := context.WithTimeout(t.Context(), requestTimeout)
	defer cancel()
	response, err := request.RequestWith(ctx, newClient(t))
	require.NoError(t, err)
	for _, result := range response.Results {
		require.NoError(t, kerr.ErrorForCode(result.ErrorCode))
	}
	t.Cleanup(func() { u.forbid(t, topic) })
}

func (u User) forbid(t *testing.T, topic string) {
	t.Helper()
	request := kmsg.NewPtrDeleteACLsRequest()
	filter := kmsg.NewDeleteACLsRequestFilter()
	filter.ResourceType, filter.ResourceName = kmsg.ACLResourceTypeTopic, &topic
	filter.ResourcePatternType = kmsg.ACLResourcePatternTypeLiteral
	filter.Principal = new("User:" + u.Name)
	filter.Operation, filter.PermissionType = kmsg.ACLOperationAny, kmsg.ACLPermissionTypeAny
	request.Filters = append(request.Filters, filter)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), requestTimeout)
	defer cancel()
	response, err := request.RequestWith(ctx, newClient(t))
	require.NoError(t, err)
	require.NoError(t, kerr.ErrorForCode(response.Results[0].ErrorCode))
}
