"""The interfaces of older ELMo libraries: their code runs after changing the imports.

    allennlp.modules.elmo, allennlp.commands.elmo   ->  elmokit.compat.allennlp
    bilm                                            ->  elmokit.compat.bilm_tf
    tensorflow_hub as hub                           ->  elmokit.compat.tf_hub as hub
    elmoformanylangs                                ->  elmokit.compat.elmoformanylangs
    simple_elmo                                     ->  elmokit.compat.simple_elmo

docs/migrating.md lists the differences from the original libraries, and the reasons for them.
"""
