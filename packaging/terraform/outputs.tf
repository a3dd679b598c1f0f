output "policies" {
  description = "The text of each policy, by its file in packaging/iam."
  value       = local.policies
}

output "policy_arns" {
  description = "The ARN of each policy, to attach it elsewhere."
  value       = { for name, policy in aws_iam_policy.this : name => policy.arn }
}

output "instance_profile" {
  description = "The name of the instance profile; null without one."
  value       = one(aws_iam_instance_profile.node[*].name)
}

output "config" {
  description = "The lines of /etc/healthd/config.toml that go with what was made."
  value = join("", concat(
    var.evidence == null ? [] : ["[evidence]\nupload_to = \"s3://${var.evidence.bucket}/${var.evidence.prefix}\"\n"],
    var.events == null ? [] : ["[notify]\neventbridge_bus = \"${local.bus_arn}\"\n"],
  ))
}
